"""The write path: every sample is committed or its error is heard, and the bytes that wait are bounded."""

import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch

from storage.errors import SampleShapeError
from storage.objects import ObjectInfo, ObjectWriter
from storage.specs import StateSpec
from storage.store import Store, add_spec, init_store, open_store
from tasks.writer import StateWriter

SPEC = StateSpec(
    model_fingerprint="f" * 64,
    architecture="LlamaForCausalLM",
    num_layers=8,
    hidden_size=32,
    layers=(4, "final"),
    compute_dtype="float32",
    storage_dtype="bfloat16",
    quantization=None,
    engine="test",
    engine_version="1",
)
NUM_TOKENS = 16
SAMPLE_BYTES = NUM_TOKENS * SPEC.bytes_per_token


class SlowWriter(ObjectWriter):
    """Writes as `ObjectWriter` does, after a while, and counts what is being written."""

    def write(self, input_ids: npt.NDArray[np.int32], hidden_states: npt.NDArray[Any]) -> ObjectInfo:
        time.sleep(0.01)
        return super().write(input_ids, hidden_states)


def make_sample(seed: int, num_tokens: int = NUM_TOKENS) -> tuple[npt.NDArray[np.int32], torch.Tensor]:
    ids = np.random.default_rng(seed).integers(0, 1000, num_tokens).astype(np.int32)
    states = torch.randn(num_tokens, 2, 32, generator=torch.Generator().manual_seed(seed))
    return ids, states.to(torch.bfloat16)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    init_store(tmp_path / "store")
    add_spec(tmp_path / "store", SPEC)
    return open_store(tmp_path / "store")


def submit_all(writer: StateWriter, seeds: range) -> None:
    for seed in seeds:
        writer.submit(*make_sample(seed))


class Commits:
    """What `on_commit` heard, and the most bytes that were handed in and not yet committed."""

    def __init__(self) -> None:
        self.infos: list[ObjectInfo] = []
        self.waiting_bytes = self.peak_bytes = 0
        self.threads: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, info: ObjectInfo) -> None:
        with self._lock:
            self.infos.append(info)
            self.threads.add(threading.current_thread().name)
            self.waiting_bytes -= info.raw_bytes

    def submit(self, writer: StateWriter, ids: npt.NDArray[np.int32], states: torch.Tensor) -> None:
        writer.submit(ids, states)
        with self._lock:
            self.waiting_bytes += states.nbytes
            self.peak_bytes = max(self.peak_bytes, self.waiting_bytes)


@pytest.mark.parametrize("limit_samples", [1, 3])
def test_bytes_in_flight_stay_below_the_limit_however_slow_the_disk(store: Store, limit_samples: int) -> None:
    commits = Commits()
    writer = StateWriter(
        SlowWriter(store.path, SPEC), threads=2, max_in_flight_bytes=limit_samples * SAMPLE_BYTES, on_commit=commits
    )
    for seed in range(20):
        commits.submit(writer, *make_sample(seed))
    writer.drain()
    writer.close()
    assert 0 < commits.peak_bytes <= limit_samples * SAMPLE_BYTES
    assert len(commits.infos) == 20


def test_what_is_stored_is_what_was_handed_in(store: Store) -> None:
    commits = Commits()
    writer = StateWriter(ObjectWriter(store.path, SPEC), threads=2, max_in_flight_bytes=1 << 20, on_commit=commits)
    samples = [make_sample(seed, num_tokens=1 + 60 * seed) for seed in range(8)]
    for ids, states in samples:
        writer.submit(ids, states)
    writer.drain()
    store.refresh()
    assert len(store) == 8
    assert len(commits.threads) == 2
    for (ids, states), info in zip(samples, sorted(commits.infos, key=lambda info: info.num_tokens), strict=True):
        found = store[info.sample_hash]
        assert np.array_equal(found.input_ids, ids)
        assert np.array_equal(found.hidden_states().view(np.uint16), states.view(torch.uint16).numpy())
        assert found.hidden_states().dtype == ml_dtypes.bfloat16
    writer.close()


def test_a_sample_above_the_limit_passes_alone(store: Store) -> None:
    commits = Commits()
    writer = StateWriter(SlowWriter(store.path, SPEC), threads=2, max_in_flight_bytes=1, on_commit=commits)
    for seed in range(3):
        commits.submit(writer, *make_sample(seed))
    writer.drain()
    writer.close()
    assert len(commits.infos) == 3
    assert commits.peak_bytes == SAMPLE_BYTES


def test_draining_never_misses_an_error(store: Store) -> None:
    """Many times over, since an error is known a moment later than its bytes are free."""
    writer = StateWriter(ObjectWriter(store.path, SPEC), threads=2, max_in_flight_bytes=1 << 20, on_commit=Commits())
    ids, states = make_sample(0)
    for _ in range(300):
        writer.submit(ids[:-1], states)
        with pytest.raises(SampleShapeError):
            writer.drain()
    writer.drain()
    writer.close()


def test_an_error_stops_whoever_submits_next(store: Store) -> None:
    commits = Commits()
    writer = StateWriter(ObjectWriter(store.path, SPEC), threads=1, max_in_flight_bytes=1, on_commit=commits)
    ids, states = make_sample(0)
    writer.submit(ids[:-1], states)
    with pytest.raises(SampleShapeError):
        submit_all(writer, range(100))
    writer.close()
    assert len(commits.infos) < 10


def test_closing_leaves_nothing_half_written(store: Store) -> None:
    writer = StateWriter(SlowWriter(store.path, SPEC), threads=2, max_in_flight_bytes=1 << 20, on_commit=Commits())
    submit_all(writer, range(20))
    writer.close()
    store.refresh()
    assert len(store) < 20
    assert list((store.path / "tmp").iterdir()) == []
    for name in store:
        assert store[name].hidden_states().shape == (NUM_TOKENS, 2, 32)
