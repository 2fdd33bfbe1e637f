import pickle
from pathlib import Path

import pytest

from tasks.engine.errors import EngineError, LayerError
from tasks.errors import TaskError, TruncatedDataError, WorkerError


def subclasses(root):
    return [root, *(below for child in root.__subclasses__() for below in subclasses(child))]


@pytest.mark.parametrize("root", [EngineError, TaskError])
def test_every_error_has_a_kind_of_its_own(root):
    kinds = [error.kind for error in subclasses(root)]
    assert len(set(kinds)) == len(kinds) > 1


@pytest.mark.parametrize(
    "error",
    [TruncatedDataError(Path("a.jsonl"), 3, 99), WorkerError("died", Path("worker.log")), LayerError("layer 31")],
)
def test_errors_survive_pickling(error):
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_dead_worker_names_its_log():
    assert "worker.log" in str(WorkerError("died", Path("worker.log")))
