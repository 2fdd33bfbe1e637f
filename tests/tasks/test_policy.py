"""What Prefect does for our tasks, by running them in it."""

from pathlib import Path

import pytest
from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE

from tasks.compaction import compact
from tasks.engine.errors import LayerError, RankLostError
from tasks.errors import RunEndedError, WorkerError
from tasks.extraction import extract
from tasks.policy import RETRY_DEAD_ENGINE, STORE_IS_THE_CACHE
from tasks.tokenization import tokenize
from tasks.validation import validate


class Failing:
    """Raises the errors it was given, one a call, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def run(work: Failing) -> str:
    """Run work as a task with our policy, but without the wait between tries."""

    @task(**STORE_IS_THE_CACHE, **(RETRY_DEAD_ENGINE | {"retry_delay_seconds": 0}))
    def step() -> str:
        return work()

    @flow(persist_result=False)
    def job() -> str:
        return step.submit().result()

    return job()


def death() -> WorkerError:
    return WorkerError("engine process on cpu was killed by SIGKILL", Path("engine-cpu.log"))


def test_a_dead_engine_is_tried_again_twice() -> None:
    work = Failing(death(), RankLostError("rank 1 of 2 was killed by SIGKILL"))
    assert run(work) == "done"
    assert work.calls == 3


def test_an_engine_that_always_dies_ends_the_run_with_its_log() -> None:
    work = Failing(*(death() for _ in range(9)))
    with pytest.raises(WorkerError, match=r"SIGKILL; its log is engine-cpu\.log"):
        run(work)
    assert work.calls == 3


@pytest.mark.parametrize("error", [LayerError("layer 9"), RunEndedError("over"), OSError(28, "full")], ids=repr)
def test_what_cannot_pass_is_not_tried_again(error: Exception) -> None:
    work = Failing(error)
    with pytest.raises(type(error)):
        run(work)
    assert work.calls == 1


@pytest.mark.parametrize("step", [tokenize, extract, validate, compact], ids=lambda step: step.name)
def test_no_step_is_cached_or_persisted_by_prefect(step: Task) -> None:
    assert step.cache_policy is NO_CACHE
    assert step.persist_result is False
    assert (step.retries > 0) == (step is extract)
