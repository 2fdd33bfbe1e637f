"""Data files, from detecting their format to the chats in their rows."""

import gzip
import io
import json
import pickle
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from fuzz_base import FileTarget
from mutations import change_value, mutate_bytes

from tasks.errors import DataError
from tasks.inputs.formats import check_file, detect_format, reader_of
from tasks.inputs.shapes import ShapeRules, find_shape, read_row
from tasks.rejections import RowRejectedError

_CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ROWS: tuple[dict[str, Any], ...] = (
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, \u00e9 \U0001f600"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "1"}]}, {"role": "assistant", "content": ""}]},
    {
        "messages": [
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "content": "2"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
    },
    {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}], "system": "Be short."},
    {
        "conversations": [
            {"from": "human", "value": "Hi"},
            {"from": "function_call", "value": json.dumps(_CALL["function"])},
        ]
    },
    {"prompt": "Say hello.", "response": "Hello", "input": "in French"},
    {"text": 'plain text \\ "quoted"\ttab'},
    {"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]},
)
_RULES = ShapeRules()


class DataFile(FileTarget):
    """A data file of any format."""

    errors = (DataError,)

    def read_file(self, path: Path) -> None:
        """Read all rows, as a run does."""
        format_ = detect_format(path)
        check_file(path, format_, keep_cut_off=path.stat().st_size % 2 == 0)
        reader = reader_of(format_)
        chunks = reader.read(path, _RULES.known_columns())
        first = next(chunks, None)
        if first is None:
            return
        records = list(reader.records(first))
        shape = find_shape((record.value for record in records[:100]), _RULES)
        rest = (record for chunk in chunks for record in reader.records(pickle.loads(pickle.dumps(chunk))))  # noqa: S301 - our own
        for record in chain(records, rest):
            if isinstance(record.value, RowRejectedError):
                continue
            try:
                read_row(record.value, shape, _RULES, content_parts=record.line % 2 == 0)
            except RowRejectedError:
                continue


def change_rows(dice: Random) -> list[Any]:
    """Return some of `ROWS`, of which values differ."""
    rows = json.loads(json.dumps([dice.choice(ROWS) for _ in range(dice.randrange(1, 5))]))
    for _ in range(1 << dice.randrange(3)):
        changed = change_value(rows, dice)
        rows = changed if isinstance(changed, list) else [changed]
    return rows


def _lines(rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


class LinesFile(DataFile):
    """JSON Lines."""

    name = "data.jsonl"

    def valid(self) -> list[bytes]:
        """Return all rows."""
        return [_lines(ROWS)]

    def make(self, dice: Random) -> bytes:
        """Change values, or bytes, or both."""
        data = _lines(change_rows(dice) if dice.randrange(2) else ROWS)
        return mutate_bytes(data, dice) if dice.randrange(2) else data


class ArrayFile(DataFile):
    """One JSON array."""

    name = "data.json"

    def valid(self) -> list[bytes]:
        """Return all rows, with and without line breaks."""
        return [json.dumps(ROWS).encode(), json.dumps(ROWS, indent=1).encode()]

    def make(self, dice: Random) -> bytes:
        """Change values, or bytes, or both."""
        rows = change_rows(dice) if dice.randrange(2) else list(ROWS)
        data = json.dumps(rows, indent=dice.choice((None, 1))).encode()
        return mutate_bytes(data, dice) if dice.randrange(2) else data


class GzipFile(LinesFile):
    """JSON Lines in gzip, one member or several."""

    name = "data.jsonl.gz"

    def valid(self) -> list[bytes]:
        """Return all rows, in two members, too."""
        whole = gzip.compress(_lines(ROWS), mtime=0)
        return [whole, whole + whole]

    def make(self, dice: Random) -> bytes:
        """Damage what is packed, or pack what is damaged."""
        if dice.randrange(2):
            return gzip.compress(super().make(dice), mtime=0)
        return mutate_bytes(dice.choice(self.valid()), dice)


class ZstdFile(LinesFile):
    """JSON Lines in Zstandard, one frame or several."""

    name = "data.jsonl.zst"

    def valid(self) -> list[bytes]:
        """Return all rows, in two frames, too, with and without a size and a checksum."""
        whole = zstandard.ZstdCompressor().compress(_lines(ROWS))
        bare = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compress(_lines(ROWS))
        return [whole, bare, whole + bare]

    def make(self, dice: Random) -> bytes:
        """Damage what is packed, or pack what is damaged, or what unpacks to much more."""
        way = dice.randrange(8)
        if way == 0:
            return zstandard.ZstdCompressor().compress(bytes([dice.randrange(128)]) * (1 << dice.randrange(10, 25)))
        if way < 4:
            return zstandard.ZstdCompressor().compress(super().make(dice))
        return mutate_bytes(dice.choice(self.valid()), dice)


_CHAT = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_TABLES: tuple[pa.Table, ...] = (
    pa.table({"messages": pa.array([ROWS[0]["messages"]] * 3, _CHAT), "id": [1, 2, 3]}),
    pa.table({"text": pa.array(["a", "b", None, "a"]).dictionary_encode()}),
    pa.table({"input_ids": [[1, 2], [3]], "loss_mask": [[0, 1], None]}),
    pa.table({"prompt": pa.array(["a", "bc"], pa.large_string()), "response": pa.array(["x", "y"], pa.string_view())}),
    pa.table({"other": pa.nulls(5), "when": pa.array([1, 2, 3, 4, 5], pa.timestamp("ns"))}),
    pa.table({"text": pa.array([b"a", b"\xff"], pa.binary()), "system": pa.array([1, 2], pa.decimal128(5))}),
)


class ParquetFile(DataFile):
    """Parquet, of several encodings and compressions."""

    name = "data.parquet"
    _compressions: ClassVar[tuple[str, ...]] = ("none", "snappy", "gzip", "zstd", "lz4")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # Parquet has no views.
        tables = [table for table in _TABLES if pa.string_view() not in table.schema.types]
        self._files = [_write_parquet(table, name) for table in tables for name in self._compressions]

    def valid(self) -> list[bytes]:
        """Return each table in each compression."""
        return self._files

    def make(self, dice: Random) -> bytes:
        """Damage a file; now and then splice two."""
        data = dice.choice(self._files)
        if dice.randrange(8) == 0:
            other = dice.choice(self._files)
            data = data[: dice.randrange(len(data))] + other[dice.randrange(len(other)) :]
        footer = len(data) - int.from_bytes(data[-8:-4], "little") - 8
        if footer > 0 and dice.randrange(2):  # pages, as the footer has them
            return mutate_bytes(data[:footer], dice)[:footer].ljust(footer, b"\0") + data[footer:]
        return mutate_bytes(data, dice)


def _write_parquet(table: pa.Table, compression: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=compression, row_group_size=2)
    return sink.getvalue()


class ArrowFile(DataFile):
    """Arrow's files and streams, compressed or not."""

    name = "data.arrow"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        options = [pa.ipc.IpcWriteOptions(compression=name) for name in (None, "lz4", "zstd")]
        makers = (pa.ipc.new_file, pa.ipc.new_stream)
        self._files = [_write_arrow(table, make, option) for table in _TABLES for make in makers for option in options]

    def valid(self) -> list[bytes]:
        """Return each table in each form."""
        return self._files

    def make(self, dice: Random) -> bytes:
        """Damage a file."""
        return mutate_bytes(dice.choice(self._files), dice)


def _write_arrow(table: pa.Table, make: Any, options: Any) -> bytes:
    sink = io.BytesIO()
    with make(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()
