"""The write path: every sample is committed or its error is heard, and the bytes that wait are bounded."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from samples_on_their_way import NUM_TOKENS, SPEC, make_sample

from storage.errors import SampleShapeError
from storage.objects import ObjectInfo, ObjectWriter
from storage.store import Store, add_spec, init_store, open_store
from tasks.landing import CpuLanding
from tasks.trace import Trace
from tasks.writer import Sample, StateWriter

SAMPLE_BYTES = NUM_TOKENS * SPEC.bytes_per_token


class SlowWriter(ObjectWriter):
    """Writes as `ObjectWriter` does, after a while, and counts what is being written."""

    def write(self, input_ids: npt.NDArray[np.int32], hidden_states: npt.NDArray[Any]) -> ObjectInfo:
        time.sleep(0.01)
        return super().write(input_ids, hidden_states)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    init_store(tmp_path / "store")
    add_spec(tmp_path / "store", SPEC)
    return open_store(tmp_path / "store")


class Storing:
    """A writer and its landing; keeps what was committed, what went wrong, and the threads that did it."""

    def __init__(self, objects: ObjectWriter, *, threads: int = 2, room_bytes: int = 1 << 20) -> None:
        self.infos: list[ObjectInfo] = []
        self.errors: list[BaseException] = []
        self.threads: set[str] = set()
        self._lock = threading.Lock()
        self.landing = CpuLanding(room_bytes)
        self._writer = StateWriter(objects.write, threads=threads, on_commit=self._commit, trace=Trace(None))
        self._writer.on_error = self.errors.append

    def submit(self, ids: npt.NDArray[np.int32], states: torch.Tensor) -> None:
        self._writer.submit(Sample(1, 0, ids), self.landing.land(states))

    def wait(self) -> None:
        """Wait until all memory has been given back, and for the word that follows."""
        self.landing.land(torch.zeros(self.landing.ring.capacity_bytes, dtype=torch.uint8)).give_back()
        self._writer.close()

    def close(self) -> None:
        self._writer.close()

    def _commit(self, _: Sample, info: ObjectInfo) -> None:
        with self._lock:
            self.infos.append(info)
            self.threads.add(threading.current_thread().name)


@pytest.fixture
def storing(store: Store) -> Iterator[Callable[..., Storing]]:
    made: list[Storing] = []

    def make(objects: type[ObjectWriter] = ObjectWriter, **limits: int) -> Storing:
        made.append(Storing(objects(store.path, SPEC), **limits))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("limit_samples", [1, 3])
def test_bytes_in_flight_stay_below_the_limit_however_slow_the_disk(
    storing: Callable[..., Storing], limit_samples: int
) -> None:
    path = storing(SlowWriter, room_bytes=limit_samples * SAMPLE_BYTES)
    for seed in range(20):
        path.submit(*make_sample(seed))
    path.wait()
    assert path.landing.ring.peak_bytes == limit_samples * SAMPLE_BYTES
    assert path.landing.ring.waited_seconds > 0
    assert len(path.infos) == 20


def test_what_is_stored_is_what_was_handed_in(store: Store, storing: Callable[..., Storing]) -> None:
    path = storing()
    samples = [make_sample(seed, num_tokens=1 + 60 * seed) for seed in range(8)]
    for ids, states in samples:
        path.submit(ids, states)
    path.wait()
    store.refresh()
    assert len(store) == 8
    assert len(path.threads) == 2
    for (ids, states), info in zip(samples, sorted(path.infos, key=lambda info: info.num_tokens), strict=True):
        found = store[info.sample_hash]
        assert np.array_equal(found.input_ids, ids)
        assert np.array_equal(found.hidden_states().view(np.uint16), states.view(torch.uint16).numpy())
        assert found.hidden_states().dtype == ml_dtypes.bfloat16


def test_what_cannot_be_stored_is_heard_and_gives_its_memory_back(storing: Callable[..., Storing]) -> None:
    path = storing(room_bytes=SAMPLE_BYTES)
    ids, states = make_sample(0)
    for _ in range(20):
        path.submit(ids[:-1], states)
    path.wait()
    assert [type(error) for error in path.errors] == [SampleShapeError] * 20
    assert path.landing.ring.used_bytes == 0


def test_closing_leaves_nothing_half_written(store: Store, storing: Callable[..., Storing]) -> None:
    path = storing(SlowWriter)
    for seed in range(20):
        path.submit(*make_sample(seed))
    path.close()
    store.refresh()
    assert len(store) < 20
    assert list((store.path / "tmp").iterdir()) == []
    for name in store:
        assert store[name].hidden_states().shape == (NUM_TOKENS, 2, 32)
