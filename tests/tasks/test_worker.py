"""The work of an engine process, with a real model and a real store, in this process."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from engine_jobs import EngineJob, make_engine_job

from storage.checks import check_store
from storage.errors import StoreFullError
from storage.store import open_store
from tasks import messages
from tasks.channel import Channel
from tasks.engine.base import Engine
from tasks.engine.errors import EngineOutOfMemoryError
from tasks.engine.reference_engine import ReferenceEngine
from tasks.worker import Worker

LENGTHS = (5, 100, 1, 80, 24, 2, 30, 13)
MAX_BATCH_TOKENS = 160


class Small:
    """The engine, on a device that has room for so many tokens."""

    def __init__(self, engine: Engine, room: int) -> None:
        self.options, self._engine, self._room = engine.options, engine, room
        self.batches: list[list[int]] = []

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        self.batches.append([len(ids) for ids in sequences])
        if sum(map(len, sequences)) > self._room:
            raise EngineOutOfMemoryError(f"no room for {sum(map(len, sequences))} tokens; lower max_batch_tokens")
        return self._engine.forward(sequences)

    def close(self) -> None:
        self._engine.close()


class Broken(Small):
    """The engine, whose states of samples of a given length have a NaN."""

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        states = self._engine.forward(sequences).clone()
        for ids, part in zip(sequences, torch.split(states, [len(ids) for ids in sequences]), strict=True):
            if len(ids) == self._room:
                part[0, 1, 0] = float("nan")
        return states


@pytest.fixture(scope="module")
def pipe() -> tuple[Connection, Connection]:
    return Pipe()


@pytest.fixture(scope="module")
def loaded(
    pipe: tuple[Connection, Connection], tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """Load one engine for all tests; each test puts it into a worker of its own."""
    job = make_engine_job(tmp_path_factory.mktemp("loaded") / "store", tiny_model("llama"), LENGTHS, MAX_BATCH_TOKENS)
    worker = Worker(job.start, Channel(pipe[1]), job.tokens, job.store)
    yield worker._engine
    worker.close()


@pytest.fixture
def job(tmp_path: Path, tiny_model: Callable[[str], Path]) -> EngineJob:
    return make_engine_job(tmp_path / "store", tiny_model("llama"), LENGTHS, MAX_BATCH_TOKENS)


@pytest.fixture
def make_worker(
    pipe: tuple[Connection, Connection], loaded: Engine, job: EngineJob, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Worker]]:
    def make(engine: Engine = loaded, job: EngineJob = job) -> Worker:
        # The real engine has passed its canary, in `loaded`; these cannot be asked all that it asks.
        monkeypatch.setattr("tasks.worker.start_engine", lambda *_: engine)
        worker = Worker(job.start, Channel(pipe[1]), job.tokens, job.store)
        made.append(worker)
        said(pipe[0])
        return worker

    made: list[Worker] = []
    yield make
    for worker in made:
        worker._path.close()


def run(worker: Worker, samples: Iterable[int] = range(len(LENGTHS))) -> None:
    worker.run_unit(messages.RunUnit(1, list(samples)))
    worker.drain()


def said(connection: Connection) -> list[messages.Message]:
    """Take all that the worker has said of samples by now."""
    return [one for one in all_said(connection) if isinstance(one, messages.Committed | messages.Quarantined)]


def all_said(connection: Connection) -> list[messages.Message]:
    heard = []
    while connection.poll():
        heard.append(messages.decode(connection.recv_bytes()))
    return heard


def test_every_sample_of_a_unit_is_committed_and_told_once(
    pipe: tuple[Connection, Connection], make_worker: Callable[..., Worker], job: EngineJob
) -> None:
    run(make_worker())
    *told, done = all_said(pipe[0])
    heard = [one for one in told if isinstance(one, messages.Committed | messages.Quarantined)]
    assert messages.UnitComputed(1, "") in told
    assert Counter(message.sample_hash for message in heard) == Counter(job.tokens.sample_hashes)
    store = job.store
    for message in heard:
        assert isinstance(message, messages.Committed)
        assert not message.existed
        assert store[message.sample_hash].num_tokens == message.num_tokens
        assert message.raw_bytes == message.num_tokens * job.spec.bytes_per_token
    assert sum(message.stored_bytes for message in heard) == store.stored_bytes()
    assert isinstance(done, messages.UnitDone)
    assert done.forward_seconds > 0
    assert done.wait_seconds >= 0


def test_what_is_stored_is_what_transformers_gives_rounded_to_bf16(
    loaded: Engine, make_worker: Callable[..., Worker], job: EngineJob
) -> None:
    run(make_worker())
    reference = ReferenceEngine(loaded.options)
    store = job.store
    for index, name in enumerate(job.tokens.sample_hashes):
        ids = job.tokens.input_ids(index)
        assert np.array_equal(store[name].input_ids, ids)
        expected = reference.forward([ids]).float().numpy()
        found = store[name].hidden_states().astype(np.float32)
        # Batches of other shapes round the last bits of fp32 otherwise; bf16 shows it once in thousands of values.
        assert np.allclose(found, expected, rtol=2**-7, atol=1e-5)
        assert (found == expected).mean() > 0.99


def test_what_the_store_has_is_told_and_not_computed(
    pipe: tuple[Connection, Connection], loaded: Engine, make_worker: Callable[..., Worker], job: EngineJob
) -> None:
    run(make_worker(), [1, 4])
    said(pipe[0])
    engine = Small(loaded, 10**6)
    run(make_worker(engine), [0, 1, 2, 4])
    existed = {message.sample_hash: message.existed for message in said(pipe[0])}
    assert existed == {job.tokens.sample_hashes[index]: index in {1, 4} for index in (0, 1, 2, 4)}
    assert engine.batches == [[5, 1]]


def test_batches_are_within_the_token_budget_and_longest_first(
    loaded: Engine, make_worker: Callable[..., Worker]
) -> None:
    engine = Small(loaded, 10**6)
    run(make_worker(engine))
    assert engine.batches == [[100], [80, 30, 24, 13, 5, 2, 1]]


@pytest.mark.parametrize("room", [100, 99, 40, 0])
def test_a_batch_without_room_is_halved_and_only_what_fits_nowhere_is_set_aside(
    pipe: tuple[Connection, Connection], loaded: Engine, make_worker: Callable[..., Worker], job: EngineJob, room: int
) -> None:
    run(make_worker(Small(loaded, room)))
    heard = said(pipe[0])
    too_long = {name for name, length in zip(job.tokens.sample_hashes, LENGTHS, strict=True) if length > room}
    aside = [message for message in heard if isinstance(message, messages.Quarantined)]
    assert {message.sample_hash for message in aside} == too_long
    assert {message.reason for message in aside} <= {"out_of_memory"}
    assert set(job.store) == set(job.tokens.sample_hashes) - too_long
    assert len(heard) == len(LENGTHS)


def test_a_sample_with_a_nan_is_set_aside_and_its_batch_is_stored(
    pipe: tuple[Connection, Connection], loaded: Engine, make_worker: Callable[..., Worker], job: EngineJob
) -> None:
    run(make_worker(Broken(loaded, 80)))
    [aside] = [message for message in said(pipe[0]) if isinstance(message, messages.Quarantined)]
    name = job.tokens.sample_hashes[LENGTHS.index(80)]
    assert (aside.sample_hash, aside.num_tokens, aside.reason) == (name, 80, "non_finite")
    assert aside.detail == "NaN or Inf in 1 of 80 rows"
    assert set(open_store(job.start.store)) == set(job.tokens.sample_hashes) - {name}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system with room for the token ids and a few samples."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_ends_the_unit_and_the_rest_is_done_when_there_is_room(
    make_worker: Callable[..., Worker], tiny_model: Callable[[str], Path], small_disk: Path
) -> None:
    job = make_engine_job(small_disk / "store", tiny_model("llama"), LENGTHS, MAX_BATCH_TOKENS)
    worker = make_worker(job=job)
    with pytest.raises(StoreFullError, match="no space left"):
        run(worker)
    worker._path.close()
    assert len(job.store) < len(LENGTHS)
    assert not check_store(job.store.path, job.spec.digest()).findings
    assert list((job.store.path / "tmp").iterdir()) == []
    subprocess.run(["mount", "-o", "remount,size=16m", str(small_disk)], check=True)
    run(make_worker(job=job))
    assert set(job.store) == set(job.tokens.sample_hashes)
    assert not check_store(job.store.path, job.spec.digest()).findings
