"""What Prefect's server must have before deployments can be run: a work pool with its queues, and limits by device."""

from collections.abc import Iterable
from dataclasses import dataclass

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, WorkPoolFilter, WorkPoolFilterName
from prefect.client.schemas.objects import ConcurrencyOptions
from prefect.client.schemas.schedules import CronSchedule
from prefect.exceptions import ObjectNotFound
from prefect.flows import Flow, load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker

from flows import crash_detection, prefect_defaults
from flows.deployments import Deployment
from tasks.device_slots import limit_name


@dataclass(frozen=True)
class Change:
    """One thing on the server, and what became of it."""

    kind: str
    name: str
    what: str


def deploy(deployments: Iterable[Deployment], device_groups: Iterable[str], *, keep_schedules: bool) -> list[Change]:
    """Make pool, queues, limits and deployments, or bring them up to date; a second time changes nothing.

    Args:
        deployments: what to offer.
        device_groups: names of this host's device groups: each has one slot.
        keep_schedules: leave the schedule of a deployment that is there as it is.
    """
    deployments = list(deployments)
    with get_client(sync_client=True) as client:
        changes = [_ensure_pool(client, pool) for pool in sorted({one.pool for one in deployments})]
        for pool, queue in sorted({(one.pool, one.queue) for one in deployments}):
            changes.append(_ensure_queue(client, pool, queue))
        for group in device_groups:
            client.upsert_global_concurrency_limit_by_name(limit_name(group), 1)
            changes.append(Change("concurrency limit", limit_name(group), "1 slot"))
        changes += watch_runs(client)
        changes += [_deploy_one(client, one, keep_schedules=keep_schedules) for one in deployments]
    return changes


def watch_runs(client: SyncPrefectClient) -> list[Change]:
    """Have the server mark runs whose process is gone."""
    return [
        Change("automation", one.name, crash_detection.ensure(client, one)) for one in crash_detection.automations()
    ]


def list_deployed(deployments: Iterable[Deployment]) -> list[Change]:
    """List what `undeploy` would remove of what is there, and remove nothing."""
    deployments = list(deployments)
    with get_client(sync_client=True) as client:
        names = [("deployment", f"{_load(one).name}/{one.name}") for one in deployments]
        found = [(kind, name) for kind, name in names if _has_deployment(client, name)]
        automations = [one.name for one in crash_detection.automations()]
        found += [("automation", name) for name in automations if client.read_automations_by_name(name)]
        found += [("concurrency limit", name) for name in _limits(client)]
        pools = [name for name in sorted({one.pool for one in deployments}) if _has_pool(client, name)]
    return [Change(kind, name, "is there") for kind, name in [*found, *(("work pool", name) for name in pools)]]


def undeploy(deployments: Iterable[Deployment]) -> list[Change]:
    """Remove what `deploy` made: of limits those of this host, a pool only once nothing else is deployed to it."""
    deployments = list(deployments)
    changes = []
    with get_client(sync_client=True) as client:
        for one in deployments:
            name = f"{_load(one).name}/{one.name}"
            try:
                client.delete_deployment(client.read_deployment_by_name(name).id)
                changes.append(Change("deployment", name, "removed"))
            except ObjectNotFound:
                changes.append(Change("deployment", name, "was not there"))
        changes += [
            Change("automation", one.name, crash_detection.remove(client, one)) for one in crash_detection.automations()
        ]
        changes += _remove_limits(client)
        changes += [_remove_pool(client, pool) for pool in sorted({one.pool for one in deployments})]
    return changes


def _ensure_pool(client: SyncPrefectClient, name: str) -> Change:
    try:  # asked for first: one made in vain is an error in the log of PostgreSQL
        client.read_work_pool(name)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=name, type=ProcessWorker.type, base_job_template=template))
        return Change("work pool", name, "made")
    return Change("work pool", name, "is there")


def _ensure_queue(client: SyncPrefectClient, pool: str, name: str) -> Change:
    try:
        client.read_work_queue_by_name(name, work_pool_name=pool)
    except ObjectNotFound:
        client.create_work_queue(name=name, work_pool_name=pool)
        return Change("queue", f"{pool}/{name}", "made")
    return Change("queue", f"{pool}/{name}", "is there")


def _deploy_one(client: SyncPrefectClient, deployment: Deployment, *, keep_schedules: bool) -> Change:
    flow = _load(deployment)
    name = f"{flow.name}/{deployment.name}"
    schedules = [_schedule(deployment)] if deployment.cron else []
    try:
        found = client.read_deployment_by_name(name)
        if keep_schedules and deployment.cron:
            schedules = [DeploymentScheduleCreate(schedule=one.schedule, active=one.active) for one in found.schedules]
    except ObjectNotFound:
        found = None
    client.create_deployment(
        flow_id=client.create_flow(flow),
        name=deployment.name,
        schedules=schedules,
        concurrency_limit=deployment.concurrency["limit"] if deployment.concurrency else None,
        concurrency_options=_options(deployment),
        parameters=deployment.parameters,
        description=deployment.description,
        tags=[crash_detection.TAG],
        work_pool_name=deployment.pool,
        work_queue_name=deployment.queue,
        entrypoint=deployment.entrypoint,
        parameter_openapi_schema=parameter_schema(flow).model_dump(exclude_unset=True),
        pull_steps=[],
        job_variables={"env": prefect_defaults.DEFAULTS},  # a worker's child imports Prefect before it imports us
        enforce_parameter_schema=True,
    )
    return Change("deployment", name, ", ".join(["made" if found is None else "up to date", *_tell(schedules)]))


def _options(deployment: Deployment) -> ConcurrencyOptions | None:
    if deployment.concurrency is None:
        return None
    return ConcurrencyOptions(collision_strategy=deployment.concurrency["collision_strategy"])


def _schedule(deployment: Deployment) -> DeploymentScheduleCreate:
    schedule = CronSchedule(cron=deployment.cron or "", timezone=deployment.timezone)
    return DeploymentScheduleCreate(schedule=schedule, active=deployment.is_active)


def _tell(schedules: Iterable[DeploymentScheduleCreate]) -> list[str]:
    return [
        f"{getattr(one.schedule, 'cron', 'a schedule')} {'' if one.active else '(paused)'}".strip() for one in schedules
    ]


def _has_deployment(client: SyncPrefectClient, name: str) -> bool:
    try:
        client.read_deployment_by_name(name)
    except ObjectNotFound:
        return False
    return True


def _has_pool(client: SyncPrefectClient, name: str) -> bool:
    try:
        client.read_work_pool(name)
    except ObjectNotFound:
        return False
    return True


def _limits(client: SyncPrefectClient) -> list[str]:
    ours = limit_name("")
    return [one.name for one in client.read_global_concurrency_limits(limit=200) if one.name.startswith(ours)]


def _remove_limits(client: SyncPrefectClient) -> list[Change]:
    names = _limits(client)
    for name in names:
        client.delete_global_concurrency_limit_by_name(name)
    return [Change("concurrency limit", name, "removed") for name in names]


def _remove_pool(client: SyncPrefectClient, name: str) -> Change:
    in_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[name]))
    if others := client.read_deployments(work_pool_filter=in_pool, deployment_filter=DeploymentFilter()):
        return Change("work pool", name, f"stays: {len(others)} other deployments use it")
    try:
        client.delete_work_pool(name)
    except ObjectNotFound:
        return Change("work pool", name, "was not there")
    return Change("work pool", name, "removed, with its queues")


def _load(deployment: Deployment) -> Flow[..., object]:
    return load_flow_from_entrypoint(deployment.entrypoint)
