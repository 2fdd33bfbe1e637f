"""Writing one shard file, by copying inner chunks from other files."""

import errno
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from storage.errors import TornObjectError
from storage.files import create_file
from storage.read_back import ReadBack
from storage.shards import ShardIndex

# Read back so many bytes at a time: small against a shard, large against what a call to the disk costs.
SEGMENT_BYTES = 64 << 20
# A call copies so many at most, so that an interrupt is not kept waiting.
CALL_BYTES = 16 << 20
# Files that the kernel cannot copy between by itself, such as those of two file systems.
CANNOT_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class ShardWriter:
    """One shard file, handed over for reading back a segment at a time.

    Args:
        folder: the staged folder.
        name: of the file, below it.
        read_back: where segments go.
    """

    def __init__(self, folder: Path, name: str, read_back: ReadBack) -> None:
        self._path = folder / name
        self._file: BinaryIO = create_file(folder, name)
        self._read_back = read_back
        self._index = ShardIndex()
        self._start = self._stop = 0
        self._sizes = array("Q")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._index)

    def append(self, source: int, offset: int, sizes: Sequence[int]) -> None:
        """Append encoded inner chunks of these sizes, which lie back to back in a file from `offset` on."""
        copy_bytes(source, offset, self._file.fileno(), self._stop, sum(sizes))
        self._stop += sum(sizes)
        self._sizes.extend(sizes)
        for size in sizes:
            self._index.append(size)
        if self._stop - self._start >= SEGMENT_BYTES:
            self._hand_over()

    def close(self, num_chunks: int) -> None:
        """Append the index of a shard of `num_chunks` inner chunks."""
        index = self._index.encode(num_chunks)
        self._file.seek(self._stop)
        self._file.write(index)
        self._file.close()
        self._hand_over(index)

    def _hand_over(self, tail: bytes = b"") -> None:
        self._read_back.submit(self._path, self._start, self._sizes, tail)
        self._start, self._sizes = self._stop, array("Q")


def copy_bytes(source: int, offset: int, target: int, position: int, count: int) -> None:
    """Copy bytes from one open file to another, by the kernel alone where it can.

    Raises:
        TornObjectError: the source ends before.
    """
    while count > 0:
        copied = _copy_some(source, offset, target, position, min(count, CALL_BYTES))
        if not copied:
            raise TornObjectError(f"a source ends {count} bytes before its last inner chunk does")
        offset, position, count = offset + copied, position + copied, count - copied


def _copy_some(source: int, offset: int, target: int, position: int, count: int) -> int:
    try:
        return os.copy_file_range(source, target, count, offset, position)
    except OSError as error:
        if error.errno not in CANNOT_COPY:
            raise
    return os.pwrite(target, os.pread(source, min(count, 1 << 20), offset), position)
