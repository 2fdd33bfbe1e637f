"""One run that many tests look at, and a job of its own for each test that wants one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import Finished, Job, write_lines

from flows import Settings


@pytest.fixture(scope="session")
def finished(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Return a run of `LINES` through a tiny Llama, in several units of several batches; its objects stay loose."""
    from flows import extract_hidden_states

    folder = tmp_path_factory.mktemp("finished")
    settings = Settings(
        model=tiny_model("llama"),
        data=write_lines(folder / "chats.jsonl"),
        store=folder / "store",
        devices="cpu",
        max_batch_tokens=700,
        unit_tokens=900,
        compact=False,
    )
    return Finished(settings, extract_hidden_states(settings))


@pytest.fixture
def job(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Job:
    data = write_lines(tmp_path / "chats.jsonl")
    return Job(tmp_path, {"model": tiny_model("llama"), "data": data, "store": tmp_path / "store", "devices": "cpu"})
