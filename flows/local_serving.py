"""One machine without a work pool: this process starts the runs itself."""

from collections.abc import Iterable

from prefect import serve
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLimitConfig
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment

from flows.crash_detection import watched_tags
from flows.deployments import Deployment
from flows.work_pool import watch_runs


def serve_deployments(deployments: Iterable[Deployment]) -> None:
    """Put the deployments on the server and run what is asked of them, until interrupted; each run is a process."""
    with get_client(sync_client=True) as client:
        watch_runs(client)
    serve(*(_served(one) for one in deployments))


def _served(deployment: Deployment) -> RunnerDeployment:
    schedules = []
    if deployment.cron:
        schedule = CronSchedule(cron=deployment.cron, timezone=deployment.timezone)
        schedules.append({"schedule": schedule, "active": deployment.is_active})
    return RunnerDeployment.from_entrypoint(
        deployment.entrypoint,
        deployment.name,
        description=deployment.description,
        tags=watched_tags(),
        parameters=deployment.parameters,
        schedules=schedules,
        concurrency_limit=ConcurrencyLimitConfig(**deployment.concurrency) if deployment.concurrency else None,
    )
