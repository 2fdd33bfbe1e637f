"""What Prefect does for our tasks: never caching, retrying only what may pass. The one place for such choices."""

from typing import Any

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import get_state_exception

from tasks.engine.errors import RankLostError
from tasks.errors import WorkerError

# The store is the cache: Prefect's own would key on the run, and a result of gigabytes must never be persisted.
STORE_IS_THE_CACHE: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}


def is_transient(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Say whether trying again may help: an engine process that died, as opposed to a wrong setting or a full disk."""
    return isinstance(_exception_of(state), WorkerError | RankLostError)


def _exception_of(state: State[Any]) -> BaseException | None:
    error = get_state_exception(state)
    return error if isinstance(error, BaseException) else None


# Units are idempotent: a retry finds what the dead engine had committed and does the rest.
RETRY_DEAD_ENGINE: dict[str, Any] = {"retries": 2, "retry_delay_seconds": [1, 10], "retry_condition_fn": is_transient}
