"""A ring of bytes: regions are taken in turn from a memory of fixed size and given back in any order. Pure integers."""

import threading
import time
from collections import deque

ALIGNMENT = 64


class Region:
    """So many bytes of a ring, from `start` on."""

    def __init__(self, start: int, num_bytes: int, end: int) -> None:
        self.start = start
        self.num_bytes = num_bytes
        self.end = end  # on the ring's endless axis, padding and what was skipped included
        self.is_free = False


class Ring:
    """Regions of a memory of `capacity_bytes`; `take` waits until there is room.

    Attributes:
        capacity_bytes: size of the memory.
        waited_seconds: how long `take` has waited for room, in all.
        peak_bytes: the most that was taken at a time.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.waited_seconds = 0.0
        self.peak_bytes = 0
        self._regions: deque[Region] = deque()
        self._head = 0  # where the next region may begin; it never wraps
        self._tail = 0  # where the oldest region that is taken begins
        self._is_closed = False
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        """Bytes that are taken, or lie between regions that are."""
        return self._head - self._tail

    def take(self, num_bytes: int) -> Region:
        """Take so many bytes in one piece.

        Raises:
            ValueError: the ring is smaller than that.
            RuntimeError: the ring was closed.
        """
        if num_bytes > self.capacity_bytes:
            raise ValueError(f"{num_bytes} bytes are more than the {self.capacity_bytes} of the ring; make it larger")
        with self._changed:
            began = time.monotonic()
            self._changed.wait_for(lambda: self._is_closed or self._has_room(num_bytes))
            self.waited_seconds += time.monotonic() - began
            if self._is_closed:
                raise RuntimeError("the ring is closed; nothing can be taken from it")
            begin = self._place(num_bytes)
            self._head = begin + _aligned(num_bytes)
            region = Region(begin % self.capacity_bytes, num_bytes, self._head)
            self._regions.append(region)
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            return region

    def give_back(self, region: Region) -> None:
        """Let the bytes of a region be taken again."""
        with self._changed:
            region.is_free = True
            while self._regions and self._regions[0].is_free:
                self._tail = self._regions.popleft().end
            if not self._regions:
                self._head = self._tail = 0
            self._changed.notify_all()

    def close(self) -> None:
        """Have whoever waits for room give up."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_room(self, num_bytes: int) -> bool:
        return not self._regions or self._place(num_bytes) + num_bytes - self._tail <= self.capacity_bytes

    def _place(self, num_bytes: int) -> int:
        """Return where the next region begins: at the head, or after the wrap if it would not fit before it."""
        left = -self._head % self.capacity_bytes
        return self._head if num_bytes <= left else self._head + left


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT
