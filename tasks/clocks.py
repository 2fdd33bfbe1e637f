"""Moments on a device, marked without waiting for it: the GPU's own clock, or that of a forward on the CPU."""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments in the order of the work on a device."""

    def mark(self) -> Any:
        """Mark the moment at which the device has done all that it was given so far."""
        ...

    def wait(self, mark: Any) -> None:
        """Wait for that moment, without keeping a core busy."""
        ...

    def seconds(self, first: Any, second: Any) -> float:
        """Return the time between two moments that have been."""
        ...

    def on_host(self, mark: Any) -> float:
        """Return when a moment was, by `time.monotonic`; to be asked in the order of the moments."""
        ...


class HostClock:
    """The clock of a CPU, where a forward has ended when its call returns."""

    def mark(self) -> float:
        """Return now."""
        return time.monotonic()

    def wait(self, mark: float) -> None:
        """Return at once: the moment has been."""

    def seconds(self, first: float, second: float) -> float:
        """Return the difference."""
        return second - first

    def on_host(self, mark: float) -> float:
        """Return the mark itself."""
        return mark


class CudaClock:
    """The clock of the GPU of this process, by events on the stream of the calling thread."""

    def __init__(self) -> None:
        self._known = self.mark()
        self.wait(self._known)
        self._known_at = time.monotonic()

    def mark(self) -> torch.cuda.Event:
        """Put an event behind the work that was given so far."""
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """Wait for an event; another thread runs meanwhile."""
        mark.synchronize()

    def seconds(self, first: torch.cuda.Event, second: torch.cuda.Event) -> float:
        """Return the GPU's time between two events."""
        return float(first.elapsed_time(second)) / 1e3

    def on_host(self, mark: torch.cuda.Event) -> float:
        """Return the time of an event; counted from the one that was asked for before, since CUDA has it in float32."""
        self._known_at += self.seconds(self._known, mark)
        self._known = mark
        return self._known_at


def make_clock(device: str) -> Clock:
    """Return the clock of a device: `cpu` or `cuda`."""
    return CudaClock() if device == "cuda" else HostClock()
