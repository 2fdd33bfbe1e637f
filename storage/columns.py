"""Plain arrays that grow along their first axis: written and read chunk by chunk, with a crc32c on each chunk."""

from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.arrays import column_document, encode_document
from storage.codecs import CHECKSUM_BYTES, add_checksum, strip_checksum
from storage.errors import CorruptObjectError
from storage.files import read_bytes, read_document, write_file
from storage.limits import MAX_ROWS, is_number
from storage.paths import StorePath

DOCUMENT = "zarr.json"
CACHED_CHUNKS = 8


class ColumnWriter:
    """Append rows to a new array; memory is one chunk.

    Args:
        path: the array's folder, which is made.
        dtype: little-endian dtype of the elements.
        chunk_rows: rows of a chunk; an array with fewer rows gets one chunk of its own length.
        row_shape: shape of one row.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, chunk_rows: int, row_shape: tuple[int, ...] = ()) -> None:
        path.mkdir()
        self._path = path
        self._buffer = np.zeros((chunk_rows, *row_shape), dtype)
        self._filled = 0
        self.num_rows = 0

    def append(self, values: npt.NDArray[Any]) -> None:
        """Append `values` [n, *row_shape]."""
        while len(values):
            taken = values[: len(self._buffer) - self._filled]
            self._buffer[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            self.num_rows += len(taken)
            values = values[len(taken) :]
            if self._filled == len(self._buffer):
                self._flush()

    def close(self) -> None:
        """Write the last chunk, padded with zeros, and the zarr.json."""
        chunk_rows = len(self._buffer)
        if self.num_rows < chunk_rows:
            chunk_rows = max(1, self.num_rows)
            self._buffer = self._buffer[:chunk_rows]
        if self._filled:
            self._buffer[self._filled :] = 0
            self._flush()
        document = column_document((self.num_rows, *self._buffer.shape[1:]), self._buffer.dtype, chunk_rows)
        write_file(self._path, DOCUMENT, [encode_document(document)])

    def _flush(self) -> None:
        chunk = (self.num_rows - 1) // len(self._buffer)
        write_file(self._path, chunk_key(chunk, self._buffer.ndim), [add_checksum(self._buffer.tobytes())])
        self._filled = 0


def write_column(path: Path, values: npt.NDArray[Any]) -> None:
    """Write `values` as an array of one chunk."""
    writer = ColumnWriter(path, values.dtype, max(1, len(values)), values.shape[1:])
    writer.append(values)
    writer.close()


class Column:
    """Read an array that `ColumnWriter` wrote.

    Raises:
        FileNotFoundError: a file is missing (here or while reading).
        CorruptObjectError: the zarr.json is not the one of such an array; a checksum is wrong.
    """

    def __init__(self, path: StorePath, dtype: npt.DTypeLike, row_shape: tuple[int, ...] = ()) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._row_shape = row_shape
        self.num_rows, self._chunk_rows = self._read_document()
        self._chunk = lru_cache(CACHED_CHUNKS)(self._read_chunk)

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        """Return the rows of a slice of step 1, as a read-only or new array."""
        start, stop, _ = rows.indices(self.num_rows)
        first, last = start // self._chunk_rows, -(-stop // self._chunk_rows)
        if stop <= start:
            return np.empty((0, *self._row_shape), self._dtype)
        chunks = [self._chunk(chunk) for chunk in range(first, last)]
        joined = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        offset = first * self._chunk_rows
        return joined[start - offset : stop - offset]

    def _read_document(self) -> tuple[int, int]:
        path = self._path / DOCUMENT
        document = read_document(path)
        try:
            num_rows = document["shape"][0]
            chunk_rows = document["chunk_grid"]["configuration"]["chunk_shape"][0]
            expected = column_document((num_rows, *self._row_shape), self._dtype, chunk_rows)
        except (KeyError, IndexError, TypeError) as error:
            raise CorruptObjectError(
                f"{path} describes no array of this format; use aerie validate --repair"
            ) from error
        if document != expected or not (is_number(num_rows, MAX_ROWS) and is_number(chunk_rows, MAX_ROWS, 1)):
            raise CorruptObjectError(f"{path} describes another array than is expected; use aerie validate --repair")
        return num_rows, chunk_rows

    def _read_chunk(self, chunk: int) -> npt.NDArray[Any]:
        path = self._path / chunk_key(chunk, 1 + len(self._row_shape))
        shape = (self._chunk_rows, *self._row_shape)
        expected = prod(shape) * self._dtype.itemsize
        body = strip_checksum(read_bytes(path, expected + CHECKSUM_BYTES), str(path))
        if len(body) != expected:
            raise CorruptObjectError(
                f"{path} has {len(body)} bytes for a chunk of {shape}; use aerie validate --repair"
            )
        return np.frombuffer(body, self._dtype).reshape(shape)


def chunk_key(chunk: int, num_axes: int) -> str:
    """Return the key of chunk number `chunk` along the first axis; the other axes have one chunk."""
    return "/".join(["c", str(chunk), *["0"] * (num_axes - 1)])
