"""What Prefect does for our tasks: never caching, retrying only what may pass. The one place for such choices."""

from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import get_state_exception
from prefect.tasks import exponential_backoff

from storage.errors import StoreFullError, StoreUnreachableError
from tasks.engine.errors import RankLostError
from tasks.errors import EncoderLostError, TokenizationError, WorkerError

# The store is the cache: Prefect's own would key on the run, and a result of gigabytes must never be persisted.
STORE_IS_THE_CACHE: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}

# How often what may pass is tried again. An engine that dies at the same place twice will do so a third time; somebody
# may make room on a disk, or start a server again, within minutes. A wrong setting or a failed canary stays what it is.
TRIES_AGAIN: dict[type[Exception], int] = {
    WorkerError: 2,
    EncoderLostError: 2,
    RankLostError: 2,
    TokenizationError: 2,
    StoreFullError: 7,
    StoreUnreachableError: 7,
}


def tries_again(error: BaseException | None) -> int:
    """Say how often a step that failed so is tried again."""
    return next((times for kind, times in TRIES_AGAIN.items() if isinstance(error, kind)), 0)


def is_worth_a_try(_task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Say whether trying again may help, this time."""
    error = get_state_exception(state)
    return run.run_count <= tries_again(error if isinstance(error, BaseException) else None)


# Steps are idempotent: a retry finds what was committed and does the rest. It waits 1, 2, 4, ... 64 s, two minutes in
# all, each up to half longer or shorter, so that many that failed together do not come back together.
RETRY_WHAT_MAY_PASS: dict[str, Any] = {
    "retries": max(TRIES_AGAIN.values()),
    "retry_delay_seconds": exponential_backoff(1),
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": is_worth_a_try,
}
