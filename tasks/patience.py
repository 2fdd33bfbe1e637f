"""How long an engine process may be silent before it is taken for hung."""

import time

from tasks import messages

# A trillion parameters from a slow disk; nothing is said while weights load.
LOAD_SECONDS = 3600.0
# The first forward compiles kernels: 70 s seen on an H200, several architectures and layouts need more.
FIRST_BATCH_SECONDS = 900.0
# Later ones do not, so a dead rank or driver shows soon.
LEAST_SECONDS = 30.0
# A neighbour on the machine made a forward 14 times slower.
SLOWDOWN = 20.0


class Patience:
    """Learns from the messages of one engine process how long its next silence may be.

    Attributes:
        seconds: from the last message to the next, at most.
    """

    def __init__(self) -> None:
        self.seconds = LOAD_SECONDS
        self._batches = 0
        self._running: tuple[float, int] | None = None
        self._longest_seconds = 0.0
        self._most_tokens = 0

    def hear(self, message: messages.Message, now: float | None = None) -> None:
        """Take in a message, heard at `now` on the monotonic clock."""
        now = time.monotonic() if now is None else now
        if isinstance(message, messages.Phase):
            self.seconds = LOAD_SECONDS
        elif isinstance(message, messages.BatchStarted):
            self._end_batch(now)
            self._begin_batch(message.num_tokens, now)
        elif isinstance(message, messages.UnitComputed):
            self._end_batch(now)  # until the next unit it only writes

    def _begin_batch(self, num_tokens: int, now: float) -> None:
        self._batches += 1
        self._running = now, num_tokens
        if self._batches == 1:
            self.seconds = FIRST_BATCH_SECONDS
            return
        # A batch takes longer the more tokens it has, yet a small one not shorter in proportion.
        expected = self._longest_seconds * max(1.0, num_tokens / self._most_tokens)
        self.seconds = max(LEAST_SECONDS, SLOWDOWN * expected)

    def _end_batch(self, now: float) -> None:
        if self._running is None:
            return
        started, num_tokens = self._running
        # What the first has compiled, the others need not; it counts until there is another to go by.
        if self._batches == 2:  # noqa: PLR2004
            self._longest_seconds, self._most_tokens = 0.0, 0
        self._longest_seconds = max(self._longest_seconds, now - started)
        self._most_tokens = max(self._most_tokens, num_tokens)
        self._running = None
