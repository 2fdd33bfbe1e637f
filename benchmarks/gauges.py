"""What a piece of work takes of the machine: time of the GPU and of cores, and memory."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import psutil
import torch

from tasks.clocks import make_clock
from tasks.engine.base import Engine

Ids = npt.NDArray[np.int32]
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Reading:
    """What one piece of work took.

    Attributes:
        seconds: by the clock on the wall.
        device_seconds: time in the model, by the clock of the device.
        cpu_seconds: of all threads, and of those processes that encode.
        peak_memory_bytes: most memory of all these that was resident meanwhile.
    """

    seconds: float
    device_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int

    @property
    def idle_share(self) -> float:
        """Share of the time in which the device had no forward."""
        return max(0.0, 1 - self.device_seconds / self.seconds)

    @property
    def cores(self) -> float:
        """Cores that were busy, on average."""
        return self.cpu_seconds / self.seconds


class GaugedEngine:
    """An engine, and how long its device is busy with forwards; marks cost nothing and are read at the end."""

    def __init__(self, engine: Engine) -> None:
        self.options = engine.options
        self._engine = engine
        self._clock = make_clock(engine.options.device)
        self._marks: list[tuple[Any, Any]] = []

    def forward(self, sequences: Sequence[Ids]) -> torch.Tensor:
        """As the engine's."""
        return self.gauge(self._engine.forward, sequences)

    def gauge(self, forward: Callable[[Sequence[Ids]], torch.Tensor], sequences: Sequence[Ids]) -> torch.Tensor:
        """Call another engine's forward, and count its time as that of this one."""
        began = self._clock.mark()
        states = forward(sequences)
        self._marks.append((began, self._clock.mark()))
        return states

    def close(self) -> None:
        """As the engine's."""
        self._engine.close()

    def read(self, work: Callable[[], object]) -> Reading:
        """Do a piece of work and return what it took; forwards that it began are waited for."""
        self._marks.clear()
        with _Peak() as peak:
            cpu, began = _cpu_seconds(), time.perf_counter()
            work()
            if self._marks:
                self._clock.wait(self._marks[-1][1])
            seconds, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
        device = sum(self._clock.seconds(*marks) for marks in self._marks)
        return Reading(seconds, device, cpu, peak.num_bytes)


class _Peak:
    """Looks at the process's memory again and again."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        process, *children = _processes()
        while True:
            others = (child.memory_info() for child in children)
            here = process.memory_info().rss + sum(memory.rss - memory.shared for memory in others)
            self.num_bytes = max(self.num_bytes, here)
            if self._is_over.wait(_SAMPLE_SECONDS):
                return


def _processes() -> list[psutil.Process]:
    """Return this process and its children, which all live as long as it."""
    process = psutil.Process()
    return [process, *process.children(recursive=True)]


def _cpu_seconds() -> float:
    times = [process.cpu_times() for process in _processes()]
    return float(sum(one.user + one.system for one in times))
