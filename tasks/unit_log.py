"""What an engine says of a unit of work, as lines for the log of a run."""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tasks import messages
from tasks.engine_counts import EngineCounts

_LINE_SECONDS = 30.0
_LAST_LINES = 20


class UnitLog:
    """Lines with device and phase: each phase, the first batch, then a batch every half minute, and what is set aside.

    Args:
        emit: where the lines go.
        counts: of the engine; its batches are numbered through all units.
        hear: who else is told of each message.
    """

    def __init__(
        self, emit: Callable[[str], object], counts: EngineCounts, hear: Callable[[messages.Message], object]
    ) -> None:
        self._emit, self._counts, self._hear = emit, counts, hear
        self._told_at: float | None = None

    def __call__(self, message: messages.Message) -> None:
        """Take in a message of the engine."""
        device = self._counts.device
        if isinstance(message, messages.Phase):
            self._emit(f"{message.engine or device}: {message.name}")
        elif isinstance(message, messages.BatchStarted):
            self._begin_batch(message.num_tokens, time.monotonic())
        elif isinstance(message, messages.Quarantined):
            self._emit(f"{device}: set aside {message.sample_hash[:12]}: {message.reason}, {message.detail}")
        self._hear(message)

    def close(self, done: messages.UnitDone) -> None:
        """Tell what the unit came to."""
        times = f"forward {done.forward_seconds:.1f} s, waited for the writing {done.wait_seconds:.1f} s"
        self._emit(f"{self._counts.device}: unit done, {times}")

    def _begin_batch(self, num_tokens: int, now: float) -> None:
        if self._told_at is None or now - self._told_at >= _LINE_SECONDS:
            self._told_at = now
            self._emit(f"{self._counts.device}: forward, batch {self._counts.batches:,} of {num_tokens:,} tokens")


def last_lines(path: Path, count: int = _LAST_LINES) -> str:
    """Return the last lines of an engine's own log; nothing where it has none."""
    try:
        with path.open(errors="replace") as file:
            return "".join(deque(file, count)).rstrip()
    except OSError:
        return ""
