"""Reading back from the disk what was just written, beside the writing of what follows."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import Self

from storage.codecs import crc32c
from storage.errors import ChecksumError

PIECE_BYTES = 1 << 20
# While one waits for the disk to take a segment, the other reads the one before.
THREADS = 2
# Segments that wait: enough that neither side does, few enough that the disk is not left behind.
MAX_WAITING = 4


class ReadBack:
    """Brings segments of files to disk and compares them with what was written, on threads of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="read-back")
        self._segments: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, path: Path, start: int, stop: int, checksum: int) -> None:
        """Queue the bytes `start` to `stop` of a file, which have that crc32c; returns once few are waiting."""
        self._segments.append(self._pool.submit(_compare, path, start, stop, checksum))
        wait(self._segments[-MAX_WAITING : -MAX_WAITING + 1])

    def finish(self) -> None:
        """Wait until all segments are on disk and as they were written.

        Raises:
            ChecksumError: the disk gave back other bytes.
            OSError: it could not take or give them.
        """
        for segment in self._segments:
            segment.result()


def _compare(path: Path, start: int, stop: int, checksum: int) -> None:
    found = 0
    for piece in _read_from_disk(path, start, stop):
        found = crc32c(piece, found)
    if found != checksum:
        raise ChecksumError(
            f"bytes {start} to {stop} of {path} have crc32c {found:08x}, {checksum:08x} was written; check the disk"
        )


def _read_from_disk(path: Path, start: int, stop: int) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fdatasync(descriptor)
        # From the disk, not from the memory from which it was written.
        os.posix_fadvise(descriptor, start, stop - start, os.POSIX_FADV_DONTNEED)
        for offset in range(start, stop, PIECE_BYTES):
            yield os.pread(descriptor, min(PIECE_BYTES, stop - offset), offset)
    finally:
        os.close(descriptor)
