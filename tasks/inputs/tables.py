"""Parquet and Arrow files: rows as they lie in columns.

What a file of somebody else says of itself is not believed: batches are checked in full before a value is taken from
them, and how much one row or one file may become is bounded.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import DataError, TruncatedDataError
from tasks.inputs.arrow_sizes import FILE_START, check_arrow, check_parquet, check_types, most_bytes
from tasks.inputs.base import BLOCK_BYTES, MAX_ROW_BYTES, Chunk, Record
from tasks.rejections import RowRejectedError

_BATCH_ROWS = 256
# What pyarrow says of damaged files: beside its own errors, of names that are no UTF-8 and of sizes that are none.
_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, LookupError, MemoryError, OverflowError, SystemError)


class TableReader:
    """What both formats have in common: record batches, which cross to other processes as Arrow streams."""

    def read(self, path: Path, columns: Collection[str]) -> Iterator[Chunk]:
        """Read chunks of rows, of the columns that are of use; see `Reader.read`."""
        size = path.stat().st_size
        first = 1
        try:
            for batch in self._batches(path, columns):
                batch.validate(full=True)
                for part in _cut(batch):
                    yield Chunk(_serialize(part), first, size)
                    first += part.num_rows
        except _ERRORS as error:
            raise TruncatedDataError(path, first, size, _problem(error), "row") from error

    def records(self, chunk: Chunk) -> Iterator[Record]:
        """Give each row as JSON values. Fields that a row has not are null in a column; they are left out."""
        with pa.ipc.open_stream(chunk.payload) as stream:
            line = chunk.first
            for batch in stream:
                for row in _rows(batch):
                    yield Record(line, row)
                    line += 1

    def _batches(self, path: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class ParquetReader(TableReader):
    """Reads Parquet page by page."""

    def _batches(self, path: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        try:
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BLOCK_BYTES)
            wanted = choose_columns(file.schema_arrow.names, columns)
        except _ERRORS as error:
            # The footer comes last: without it no row can be read.
            raise DataError(
                f"{path}: no Parquet file, or cut off at byte {path.stat().st_size} ({_problem(error)}); copy the file "
                "again"
            ) from error
        with file:
            check_parquet(path, file.metadata)
            check_types(path, file.schema_arrow, wanted)
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted)


class ArrowReader(TableReader):
    """Reads Arrow files and Arrow streams, which `datasets` writes."""

    def _batches(self, path: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        check_arrow(path)
        with pa.OSFile(str(path)) as file:
            # A file is a stream after its first bytes. By its footer it could name messages that nobody has looked at.
            file.seek(len(FILE_START) if file.read(len(FILE_START)) == FILE_START else 0)
            table = pa.ipc.open_stream(file)
            wanted = choose_columns(table.schema.names, columns)
            check_types(path, table.schema, wanted)
            for batch in table:
                yield batch.select(wanted)


def choose_columns(names: Collection[str], wanted: Collection[str]) -> list[str]:
    """Return the columns that are of use; the first one where none is, so that the rows are counted."""
    return [name for name in names if name in wanted] or list(names)[:1]


def without_nulls(value: Any) -> Any:
    """Leave null fields out of objects, at any depth: a column of objects has every field that any of them has."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _rows(batch: pa.RecordBatch) -> Iterator[Any]:
    """Give each row of a batch as JSON values, or why it has none."""
    if most_bytes(batch) <= MAX_ROW_BYTES:
        try:
            yield from [without_nulls(row) for row in batch.to_pylist()]
        except (pa.ArrowException, ValueError, OverflowError):  # of one row; which, the rows alone tell
            pass
        else:
            return
    yield from (_row(batch.slice(index, 1)) for index in range(batch.num_rows))


def _row(batch: pa.RecordBatch) -> Any:
    if most_bytes(batch) > MAX_ROW_BYTES:
        return RowRejectedError("too_big", f"the row has over {MAX_ROW_BYTES:,} bytes")
    try:
        return without_nulls(batch.to_pylist()[0])
    except UnicodeDecodeError:
        return RowRejectedError("invalid_unicode")
    except (pa.ArrowException, ValueError, OverflowError) as error:  # such as a date that Python has not
        return RowRejectedError("invalid_json", _problem(error))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into parts of about the size of a chunk."""
    count = max(1, batch.num_rows * BLOCK_BYTES // max(1, batch.nbytes))
    bounds = [*range(0, batch.num_rows, min(count, _BATCH_ROWS)), batch.num_rows]
    for start, end in pairwise(bounds):
        yield batch.slice(start, end - start)


def _serialize(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _problem(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
