"""Parquet and Arrow files: rows as they lie in columns."""

from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.errors import DataError, TruncatedDataError
from tasks.inputs.base import BLOCK_BYTES, Chunk, Record

_ARROW_FILE = b"ARROW1"
_BATCH_ROWS = 256


class TableReader:
    """What both formats have in common: record batches, which cross to other processes as Arrow streams."""

    def read(self, path: Path, columns: Collection[str]) -> Iterator[Chunk]:
        """Read chunks of rows, of the columns that are of use; see `Reader.read`."""
        size = path.stat().st_size
        first = 1
        try:
            for batch in self._batches(path, columns):
                for part in _cut(batch):
                    yield Chunk(_serialize(part), first, size)
                    first += part.num_rows
        except (pa.ArrowInvalid, OSError) as error:
            raise TruncatedDataError(path, first, size, " ".join(str(error).split()), "row") from error

    def records(self, chunk: Chunk) -> Iterator[Record]:
        """Give each row as JSON values. Fields that a row has not are null in a column; they are left out."""
        with pa.ipc.open_stream(chunk.payload) as stream:
            line = chunk.first
            for batch in stream:
                for row in batch.to_pylist():
                    yield Record(line, without_nulls(row))
                    line += 1

    def _batches(self, path: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


class ParquetReader(TableReader):
    """Reads Parquet page by page."""

    def _batches(self, path: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        try:
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=BLOCK_BYTES)
        except (pa.ArrowInvalid, OSError) as error:
            # The footer comes last: without it no row can be read.
            problem = " ".join(str(error).split())
            raise DataError(
                f"{path}: no Parquet file, or cut off at byte {path.stat().st_size} ({problem}); copy the file again"
            ) from error
        with file:
            wanted = choose_columns(file.schema_arrow.names, columns)
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=wanted)


class ArrowReader(TableReader):
    """Reads Arrow files and Arrow streams, which `datasets` writes."""

    def _batches(self, path: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
        with pa.OSFile(str(path)) as file:
            if file.read(len(_ARROW_FILE)) == _ARROW_FILE:
                table = pa.ipc.open_file(file)
                batches = (table.get_batch(index) for index in range(table.num_record_batches))
            else:
                file.seek(0)
                table = pa.ipc.open_stream(file)
                batches = iter(table)
            wanted = choose_columns(table.schema.names, columns)
            for batch in batches:
                yield batch.select(wanted)


def choose_columns(names: Collection[str], wanted: Collection[str]) -> list[str]:
    """Return the columns that are of use; the first one where none is, so that the rows are counted."""
    return [name for name in names if name in wanted] or list(names)[:1]


def without_nulls(value: Any) -> Any:
    """Leave null fields out of objects, at any depth: a column of objects has every field that any of them has."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


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
