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
        self._seconds_per_token = 0.0
        self._batch: tuple[float, int] | None = None

    def hear(self, message: messages.Message) -> None:
        """Take in a message."""
        if isinstance(message, messages.Phase):
            self.seconds = LOAD_SECONDS
        elif isinstance(message, messages.BatchStarted):
            self._begin_batch(message.num_tokens, time.monotonic())

    def _begin_batch(self, num_tokens: int, now: float) -> None:
        if self._batch is None:
            self.seconds = FIRST_BATCH_SECONDS
        else:
            started, tokens_before = self._batch
            self._seconds_per_token = max(self._seconds_per_token, (now - started) / tokens_before)
            self.seconds = max(LEAST_SECONDS, SLOWDOWN * self._seconds_per_token * num_tokens)
        self._batch = now, num_tokens
