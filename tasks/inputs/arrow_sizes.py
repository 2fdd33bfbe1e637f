"""How much a table may become: what its file says of sizes, looked at before anything is unpacked."""

import os
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.errors import DataError

# Text packs to a third, columns of equal numbers to a hundredth; what goes on beyond is made to fill memory.
MAX_RATIO = 100
FREE_BYTES = 64 << 20
# Rows of equal values take next to no bytes, and each row takes time.
MAX_ROWS_PER_BYTE = 100
# Of the header of one message: a schema of many thousand columns.
_MAX_HEADER_BYTES = 16 << 20
# https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
_CONTINUATION = b"\xff\xff\xff\xff"
FILE_START = b"ARROW1\0\0"
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list, pa.types.is_map)
_NUMBER_BYTES, _BUFFER = 8, struct.Struct("<qq")


def check_parquet(path: Path, metadata: Any) -> None:
    """Refuse a Parquet file that says it becomes far more than text does, or has more rows than its bytes can tell.

    Raises:
        DataError: it does.
    """
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    _require(path, sum(max(0, group.total_byte_size) for group in groups), max(0, metadata.num_rows))


def check_arrow(path: Path) -> None:
    """Refuse an Arrow file or stream likewise, by the sizes that each compressed buffer begins with.

    Raises:
        DataError: it does.
    """
    num_bytes = num_rows = 0
    # What is damaged ends it: reading will say so, at the same message.
    with path.open("rb") as file, suppress(struct.error, OverflowError, OSError):
        for header, body in _messages(file):
            unpacked, rows = _sizes(file, header, body)
            num_bytes, num_rows = num_bytes + unpacked, num_rows + rows
            _require(path, num_bytes, num_rows)


def check_types(path: Path, schema: pa.Schema, columns: Collection[str]) -> None:
    """Refuse columns whose rows may share all of their values, so that few bytes are many lists.

    Raises:
        DataError: there are such.
    """
    for name in columns:
        if any(
            pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind) for kind in _kinds(schema.field(name).type)
        ):
            raise DataError(f"{path}: column {name!r} has list views, which are not read; save it with lists")


def most_bytes(data: pa.RecordBatch | pa.Array) -> int:
    """Return how many bytes values have at most, once none is shared."""
    if isinstance(data, pa.RecordBatch):
        return sum(most_bytes(column) for column in data.columns)
    shared = _shared_bytes(data)
    if shared is not None:
        return shared
    parts: list[pa.Array] = []
    if pa.types.is_struct(data.type):
        parts = data.flatten()
    elif any(is_kind(data.type) for is_kind in _LISTS):
        parts = [data.flatten()]
    return 8 * len(data) + sum(map(most_bytes, parts)) if parts else int(data.nbytes)


def _shared_bytes(data: pa.Array) -> int | None:
    """Return the same of values that may be one and the same; None of others."""
    if pa.types.is_dictionary(data.type):
        used = data.indices.unique().drop_null()
        return len(data) * _longest(data.dictionary.take(used))
    if pa.types.is_run_end_encoded(data.type):
        return len(data) * _longest(data.values)
    if pa.types.is_string_view(data.type) or pa.types.is_binary_view(data.type):
        return 16 * len(data) + _view_bytes(data)
    return None


def _longest(values: pa.Array) -> int:
    """Return the most bytes of one of some values."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return pc.max(pc.binary_length(values)).as_py() or 1
    return max(1, most_bytes(values))


def _view_bytes(data: pa.Array) -> int:
    """Add up the lengths with which the 16 bytes of each view begin; several may be of the same text."""
    lengths = np.frombuffer(data.buffers()[1], "<i4")[::4][data.offset : data.offset + len(data)]
    return int(lengths.sum(where=data.is_valid().to_numpy(zero_copy_only=False), dtype=np.int64))


def _kinds(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for index in range(kind.num_fields):
        yield from _kinds(kind.field(index).type)


def _require(path: Path, num_bytes: int, num_rows: int) -> None:
    size = path.stat().st_size
    if num_bytes > FREE_BYTES + MAX_RATIO * size:
        raise DataError(
            f"{path} has {size:,} bytes and unpacks to {num_bytes:,}, more than {MAX_RATIO} times as many; it is "
            "damaged or made to fill memory: write it again from its source"
        )
    if num_rows > MAX_ROWS_PER_BYTE * size:
        raise DataError(
            f"{path} has {size:,} bytes and says {num_rows:,} rows, over {MAX_ROWS_PER_BYTE} a byte; it is damaged "
            "or made to take time: write it again from its source"
        )


def _messages(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Give the header of each message, and where its body begins; an Arrow file has a stream after its first bytes."""
    start = len(FILE_START) if file.read(len(FILE_START)) == FILE_START else 0
    end = file.seek(0, os.SEEK_END)
    while start + 8 <= end:
        file.seek(start)
        prefix = file.read(8)
        is_old = not prefix.startswith(_CONTINUATION)  # as before Arrow 0.15
        length = int.from_bytes(prefix[:4] if is_old else prefix[4:], "little")
        start += 4 if is_old else 8
        if not 0 < length <= _MAX_HEADER_BYTES:
            return
        file.seek(start)
        header = file.read(length)
        yield header, start + length
        body = _number(header, _field(header, _root(header), 3), "<q")
        if body < 0:
            return
        start += length + body


def _sizes(file: BinaryIO, header: bytes, body: int) -> tuple[int, int]:
    """Return how many bytes the buffers of a message unpack to, and how many rows it says that it has."""
    message = _root(header)
    kind = _number(header, _field(header, message, 1), "<B")
    batch = _follow(header, _field(header, message, 2))
    if kind == _DICTIONARY_BATCH:
        batch = _follow(header, _field(header, batch, 1))
    elif kind != _RECORD_BATCH:
        return 0, 0
    rows = _number(header, _field(header, batch, 0), "<q")
    if not _field(header, batch, 3):  # nothing is compressed
        return 0, max(0, rows)
    buffers = _follow(header, _field(header, batch, 2))
    total = 0
    for index in range(min(_number(header, buffers, "<I"), len(header) // _BUFFER.size)):
        offset, length = _BUFFER.unpack_from(header, buffers + 4 + _BUFFER.size * index)
        if length >= _NUMBER_BYTES and offset >= 0:
            file.seek(body + offset)
            total += max(0, int.from_bytes(file.read(_NUMBER_BYTES), "little", signed=True))
    return total, max(0, rows)


# Headers are flatbuffers (https://flatbuffers.dev/internals): a table begins with the distance back to where its fields
# are listed.
def _root(header: bytes) -> int:
    return _number(header, 0, "<I")


def _field(header: bytes, table: int, index: int) -> int:
    """Return where a field of a table is; 0 where it is left out."""
    places = table - _number(header, table, "<i")
    if places < 0 or 4 + 2 * index >= _number(header, places, "<H"):
        return 0
    offset = _number(header, places + 4 + 2 * index, "<H")
    return table + offset if offset else 0


def _follow(header: bytes, place: int) -> int:
    return place + _number(header, place, "<I")


def _number(header: bytes, place: int, form: str) -> int:
    if not place and form != "<I":
        return 0
    number: int = struct.unpack_from(form, header, place)[0]
    return number
