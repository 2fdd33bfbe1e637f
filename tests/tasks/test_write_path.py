"""The forward is held up only for want of room, is told how long, and hears what ends the path."""

import os
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from storage.errors import StoreFullError
from storage.objects import ObjectInfo
from tasks.clocks import HostClock
from tasks.faults import Fault, flag_rows
from tasks.landing import CpuLanding, SharedLanding
from tasks.open_units import OpenUnit, OpenUnits
from tasks.trace import Trace
from tasks.write_path import Batch, WritePath
from tasks.writer import Sample, StateWriter

OPTIONS: Any = SimpleNamespace(layers=(4, "final"), deterministic=False, rounds_inputs=False,
                               compute_dtype="float32", output_dtype="float32")  # fmt: skip
NUM_TOKENS = 8
SAMPLE_BYTES = NUM_TOKENS * 2 * 16 * 4
Write = Callable[[npt.NDArray[np.int32], npt.NDArray[Any]], ObjectInfo]


class Path:
    """A write path with a store of one's own, and what it told."""

    def __init__(self, write: Write, room_samples: int) -> None:
        self.done: list[OpenUnit] = []
        self.faults: list[tuple[int, Fault]] = []
        self.errors: list[BaseException] = []
        self.units = OpenUnits(self.done.append)
        self.clock = HostClock()
        trace = Trace(None)
        writer = StateWriter(write, threads=1, on_commit=lambda sample, _: self.units.settle(sample.unit), trace=trace)
        self.path = WritePath(
            OPTIONS, self.clock, CpuLanding(room_samples * SAMPLE_BYTES), writer, self.units,
            on_fault=self._on_fault, on_error=self.errors.append, trace=trace,
        )  # fmt: skip

    def run(self, unit: int, states: list[torch.Tensor], rechecks: dict[int, torch.Tensor] | None = None) -> None:
        began = self.clock.mark()
        samples = [Sample(unit, index, np.arange(NUM_TOKENS, dtype=np.int32)) for index in range(len(states))]
        flags = flag_rows(torch.cat(states), OPTIONS.layers)
        self.path.hand_over(Batch(samples, states, flags, rechecks or {}, began, self.clock.mark()))

    def _on_fault(self, sample: Sample, fault: Fault) -> None:
        self.faults.append((sample.index, fault))
        self.units.settle(sample.unit)


@pytest.fixture
def make_path() -> Iterator[Callable[..., Path]]:
    made: list[Path] = []

    def make(write: Write, room_samples: int = 2) -> Path:
        made.append(Path(write, room_samples))
        return made[-1]

    yield make
    for path in made:
        path.path.close()


def store_slowly(ids: npt.NDArray[np.int32], states: npt.NDArray[Any]) -> ObjectInfo:
    time.sleep(0.05)
    return ObjectInfo("", len(ids), states.nbytes, states.nbytes, existed=False)


def test_a_slow_store_holds_the_forward_up_and_the_unit_says_how_long(make_path: Callable[..., Path]) -> None:
    path = make_path(store_slowly)
    path.units.begin(1, 12)
    began = time.monotonic()
    for _ in range(12):
        path.run(1, [torch.ones(NUM_TOKENS, 2, 16)])
    path.units.end_forward(1)
    path.units.wait(lambda: path.path.has_failed)
    [unit] = path.done
    # Of twelve samples, two in the ring and as many before it wait without holding anything up.
    assert 5 * 0.05 < unit.wait_seconds <= time.monotonic() - began
    assert not path.path.empty_device()


def test_what_is_wrong_with_a_sample_keeps_it_and_no_other_from_the_store(make_path: Callable[..., Path]) -> None:
    stored: list[float] = []

    def keep(ids: npt.NDArray[np.int32], states: npt.NDArray[Any]) -> ObjectInfo:
        stored.append(float(states[0, 0, 0]))
        return ObjectInfo("", len(ids), 0, 0, existed=False)

    path = make_path(keep, room_samples=4)
    states = [torch.full((NUM_TOKENS, 2, 16), float(value)) for value in (1, 2, 3, 4)]
    states[1][3, 1, 0] = float("nan")
    path.units.begin(1, 4)
    path.run(1, states, {2: torch.tensor([0.0, 0.5]), 3: torch.tensor([0.0, 0.0])})
    path.units.end_forward(1)
    path.units.wait(lambda: path.path.has_failed)
    assert [(index, fault.reason) for index, fault in path.faults] == [(1, "non_finite"), (2, "parity")]
    assert stored == [1.0, 4.0]
    assert path.errors == []


def test_the_forward_hears_what_keeps_a_sample_from_the_store(make_path: Callable[..., Path]) -> None:
    def refuse(ids: npt.NDArray[np.int32], states: npt.NDArray[Any]) -> ObjectInfo:
        raise StoreFullError(f"no space left for {states.nbytes} bytes of {len(ids)} tokens")

    path = make_path(refuse)
    path.units.begin(1, 1000)

    def run_all() -> None:
        for _ in range(1000):
            path.run(1, [torch.ones(NUM_TOKENS, 2, 16)])

    with pytest.raises(StoreFullError):
        run_all()
    assert [type(error) for error in path.errors] == [StoreFullError]
    path.units.wait(lambda: path.path.has_failed)
    with pytest.raises(StoreFullError):
        path.path.raise_error()


def test_closing_lets_the_shared_memory_go() -> None:
    landing, units = SharedLanding(SAMPLE_BYTES, "cpu"), OpenUnits(lambda _: None)
    trace = Trace(None)
    writer = StateWriter(lambda *_: pytest.fail("nothing was handed over"), threads=1, on_commit=print, trace=trace)
    path = WritePath(OPTIONS, HostClock(), landing, writer, units, on_fault=print, on_error=print, trace=trace)
    os.fstat(landing.memory.fd)
    path.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(landing.memory.fd)
