"""What one engine did in a run, over all processes that took its place."""

import time
from dataclasses import dataclass, field

from tasks import messages
from tasks.timelines import Timeline


@dataclass
class EngineCounts:
    """Counts of one engine, fed by its messages.

    Attributes:
        device: name of its device group.
        restarts: processes that were started after the first.
        batches: forwards that it has begun.
        samples: samples that it computed and committed.
        tokens: their tokens.
        busy_seconds: time in units of work that were done.
        peak_memory_bytes: most memory that one of its processes had; of several ranks, that of the first.
        peak_device_bytes: the same on its (first) GPU.
        timeline: when its tokens were committed.
    """

    device: str
    restarts: int = 0
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    busy_seconds: float = 0.0
    peak_memory_bytes: int = 0
    peak_device_bytes: int = 0
    timeline: Timeline = field(default_factory=Timeline)

    def hear(self, message: messages.Message) -> None:
        """Take in a message."""
        if isinstance(message, messages.Committed) and not message.existed:
            self.samples += 1
            self.tokens += message.num_tokens
            self.timeline.add(time.time(), message.num_tokens)
        elif isinstance(message, messages.BatchStarted):
            self.batches += 1
        elif isinstance(message, messages.UnitDone):
            self.busy_seconds = round(self.busy_seconds + message.forward_seconds + message.wait_seconds, 3)
            self.peak_memory_bytes = max(self.peak_memory_bytes, message.peak_memory_bytes)
            self.peak_device_bytes = max(self.peak_device_bytes, message.peak_device_bytes)
