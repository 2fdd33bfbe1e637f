"""An object of a bucket, read by ranges."""

import tempfile
from contextlib import ExitStack
from typing import ClassVar

from storage.bucket import PART_BYTES, Bucket


class ObjectReader:
    """An object, read by one request a call: a `backends.Reader`.

    Args:
        bucket: where it is.
        key: its key.
    """

    # A request takes about as long as 2 MB on their way do, so larger pieces gain little and take memory.
    piece_bytes: ClassVar[int] = 8 << 20
    gap_bytes: ClassVar[int] = 1 << 20

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._stack = ExitStack()

    def read(self, offset: int, num_bytes: int, out: memoryview | None = None) -> memoryview:  # noqa: ARG002 - see below
        """Return bytes from `offset` on, fewer where the object ends before; in the client's memory, not in `out`."""
        return self._bucket.get_range(self._key, offset, offset + num_bytes)

    def read_tail(self, num_bytes: int) -> tuple[memoryview, int]:
        """Return the last bytes, fewer where the object is shorter; and the bytes of all of it."""
        return self._bucket.get_tail(self._key, num_bytes)

    def spool(self, offset: int, num_bytes: int) -> tuple[int, int]:
        """Fetch a range into a temporary file, which is gone once the reader is closed."""
        file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - closed with the others
        for start in range(offset, offset + num_bytes, PART_BYTES):
            file.write(self.read(start, min(PART_BYTES, offset + num_bytes - start)))
        file.flush()
        return file.fileno(), 0

    def close(self) -> None:
        """Let go of temporary files."""
        self._stack.close()
