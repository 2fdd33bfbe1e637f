"""Units of work that are under way: the samples of one are written while the next is computed."""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class OpenUnit:
    """One unit: what of it is open, and its times.

    Attributes:
        number: which one.
        samples: samples that are neither committed nor set aside.
        is_computed: whether the forward has no more to do for it.
        forward_seconds: time in the model.
        wait_seconds: time in which the device had nothing to do because states waited to be written.
    """

    number: int
    samples: int
    is_computed: bool = False
    forward_seconds: float = 0.0
    wait_seconds: float = 0.0


class OpenUnits:
    """Tells when a unit is done: it is computed, all its samples are settled, and all units before it are done.

    Args:
        on_done: called with each, in order, on the thread that had the last word.
    """

    def __init__(self, on_done: Callable[[OpenUnit], None]) -> None:
        self._on_done = on_done
        self._units: deque[OpenUnit] = deque()
        self._changed = threading.Condition()

    def begin(self, number: int, samples: int) -> None:
        """Begin a unit of so many samples."""
        with self._changed:
            self._units.append(OpenUnit(number, samples))

    def add_times(self, number: int, forward_seconds: float, wait_seconds: float) -> None:
        """Count what a batch of it took."""
        with self._changed:
            unit = self._find(number)
            unit.forward_seconds += forward_seconds
            unit.wait_seconds += wait_seconds

    def end_forward(self, number: int) -> None:
        """Count it as computed."""
        with self._changed:
            self._find(number).is_computed = True
            self._tell()

    def settle(self, number: int) -> None:
        """Count a sample of it as committed or set aside."""
        with self._changed:
            self._find(number).samples -= 1
            self._tell()

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until no unit is open, or something else is over, which `wake` has it ask for again."""
        with self._changed:
            self._changed.wait_for(lambda: not self._units or is_over())

    def wake(self) -> None:
        """Have `wait` ask again."""
        with self._changed:
            self._changed.notify_all()

    def _find(self, number: int) -> OpenUnit:
        return next(unit for unit in self._units if unit.number == number)

    def _tell(self) -> None:
        while self._units and self._units[0].is_computed and not self._units[0].samples:
            self._on_done(self._units.popleft())
        self._changed.notify_all()
