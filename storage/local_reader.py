"""An open file of a file system."""

import os
from typing import ClassVar


class LocalReader:
    """A file, read by its descriptor: a `backends.Reader`."""

    # A call costs more than to copy a small chunk, and what is decoded next should still be in the processor's cache.
    piece_bytes: ClassVar[int] = 1 << 20
    gap_bytes: ClassVar[int] = 0

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, offset: int, num_bytes: int, out: memoryview | None = None) -> memoryview:
        """Return bytes from `offset` on; fewer where the file ends before."""
        if out is None:
            return memoryview(os.pread(self._descriptor, num_bytes, offset))
        return out[: os.preadv(self._descriptor, [out], offset)]

    def read_tail(self, num_bytes: int) -> tuple[memoryview, int]:
        """Return the last bytes, fewer where the file is shorter; and the bytes of the whole file."""
        size = os.fstat(self._descriptor).st_size
        return self.read(max(0, size - num_bytes), min(size, num_bytes)), size

    def spool(self, offset: int, num_bytes: int) -> tuple[int, int]:  # noqa: ARG002 - the protocol's
        """Return the file itself."""
        return self._descriptor, offset

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)
