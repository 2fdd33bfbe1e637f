"""Reading back from the disk what was just written, beside the writing of what follows."""

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storage.codecs import CHECKED, CHECKSUM_BYTES, crc32c
from storage.errors import ChecksumError

BUFFER_BYTES = 1 << 20
# While one waits for the disk to take a segment, the other reads the one before.
THREADS = 2
# Segments that wait: enough that neither side does, few enough that the disk is not left behind.
MAX_WAITING = 4


class ChunkSums(NamedTuple):
    """What was read back of inner chunks.

    Attributes:
        checksums: their trailing checksums: uint32[n].
        is_sound: whether each has the one that it ends in: bool[n].
    """

    checksums: npt.NDArray[np.uint32]
    is_sound: npt.NDArray[np.bool_]


class ReadBack:
    """Brings segments of files to disk and reads them from there, on threads of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="read-back")
        self._segments: list[Future[ChunkSums]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, path: Path, start: int, sizes: Sequence[int], tail: bytes = b"") -> None:
        """Queue a segment of a file: inner chunks of these sizes from byte `start` on, and the bytes `tail` after them.

        Returns once few segments are waiting.
        """
        self._segments.append(self._pool.submit(_read_segment, path, start, sizes, tail))
        wait(self._segments[-MAX_WAITING : -MAX_WAITING + 1])

    def finish(self) -> ChunkSums:
        """Wait until all segments are on disk and read back; return what was found, in the order of the segments.

        Raises:
            ChecksumError: a tail is another.
            OSError: the disk could not take or give the bytes.
        """
        found = [segment.result() for segment in self._segments]
        return ChunkSums(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _read_segment(path: Path, start: int, sizes: Sequence[int], tail: bytes) -> ChunkSums:
    sums = ChunkSums(np.zeros(len(sizes), "<u4"), np.zeros(len(sizes), bool))
    with path.open("rb", BUFFER_BYTES) as file:
        os.fdatasync(file.fileno())
        # From the disk, not from the memory from which it was written.
        os.posix_fadvise(file.fileno(), start, sum(sizes) + len(tail), os.POSIX_FADV_DONTNEED)
        file.seek(start)
        for number, size in enumerate(sizes):
            data = file.read(size)
            sums.checksums[number] = int.from_bytes(data[-CHECKSUM_BYTES:], "little")
            sums.is_sound[number] = len(data) == size and crc32c(data) == CHECKED
        if file.read(len(tail)) != tail:
            raise ChecksumError(f"the index of {path} was read back other than written; check the disk")
    return sums
