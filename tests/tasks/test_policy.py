"""What Prefect does for our tasks, by running them in it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import Task, flow, task
from prefect.cache_policies import NO_CACHE

from flows.errors import SettingsError
from storage.errors import StoreFullError, StoreUnreachableError
from tasks.compaction import compact
from tasks.engine.errors import CanaryError, LayerError, RankLostError
from tasks.errors import RunEndedError, WorkerError
from tasks.extraction import extract
from tasks.policy import RETRY_WHAT_MAY_PASS, STORE_IS_THE_CACHE, tries_again
from tasks.remote_errors import KNOWN_ERRORS
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

    @task(**STORE_IS_THE_CACHE, **(RETRY_WHAT_MAY_PASS | {"retry_delay_seconds": 0}))
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


def test_a_full_disk_and_a_lost_server_are_given_two_minutes() -> None:
    work = Failing(*[StoreFullError("full")] * 4, *[StoreUnreachableError("away")] * 3)
    assert run(work) == "done"
    delays = extract.retry_delay_seconds
    assert delays == [1, 2, 4, 8, 16, 32, 64]
    assert extract.retry_jitter_factor


@pytest.mark.parametrize(
    "error",
    [SettingsError("no"), CanaryError("no"), LayerError("9"), RunEndedError("over"), OSError(28, "full")],
    ids=repr,
)
def test_what_cannot_pass_is_not_tried_again(error: Exception) -> None:
    work = Failing(error)
    with pytest.raises(type(error)):
        run(work)
    assert work.calls == 1


# Every kind there is, so that whoever adds one decides.
MAY_PASS = {"worker": 2, "encoder_lost": 2, "rank_lost": 2, "tokenization": 2, "store_full": 7, "store_unreachable": 7}
STAYS = {
    *("settings", "task", "data", "data_not_found", "empty_data", "truncated_data", "tokenizer", "plan"),
    *("not_enough_space", "run_ended", "too_many_quarantined", "smollm2_missing"),
    *("engine", "model_not_found", "not_a_model", "unsupported_architecture", "layer", "device", "device_taken"),
    *("engine_version", "engine_state", "out_of_memory", "precision", "canary", "model_load"),
    *("storage", "store_not_found", "not_a_store", "store_version", "store_read_only", "spec", "sample_not_found"),
    *("sample_shape", "states_too_large", "resume", "corrupt_object", "landing", "export", "import_files", "plot"),
    "part",
}


def kinds(*bases: type[Exception]) -> Iterator[type[Exception]]:
    for base in bases:
        yield base
        yield from kinds(*base.__subclasses__())


def test_each_kind_of_error_is_tried_again_as_often_as_it_may_help() -> None:
    errors = [kind for kind in kinds(SettingsError, *KNOWN_ERRORS) if not kind.__module__.startswith("test")]
    assert {kind.kind: tries_again(kind.__new__(kind)) for kind in errors} == MAY_PASS | dict.fromkeys(STAYS, 0)


@pytest.mark.parametrize("step", [tokenize, extract, validate, compact], ids=lambda step: step.name)
def test_no_step_is_cached_or_persisted_by_prefect_and_each_is_tried_again(step: Task) -> None:
    assert step.cache_policy is NO_CACHE
    assert step.persist_result is False
    assert step.retry_condition_fn is RETRY_WHAT_MAY_PASS["retry_condition_fn"]
