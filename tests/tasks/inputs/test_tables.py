"""Parquet and Arrow files give the rows that JSON Lines would."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_fixtures import FIXTURES

from tasks.errors import DataError, TruncatedDataError
from tasks.inputs import tables
from tasks.inputs.tables import ArrowReader, ParquetReader, choose_columns, without_nulls

ROWS = [
    {"messages": row["messages"], "id": i} for i, row in enumerate([*FIXTURES.values()] * 40) if i % 20 in (0, 1, 2)
]


def write_parquet(path, table):
    pq.write_table(table, path, row_group_size=50)


def write_arrow_file(path, table):
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=50)


def write_arrow_stream(path, table):
    with pa.ipc.new_stream(str(path), table.schema) as file:
        file.write_table(table, max_chunksize=50)


KINDS = {
    "parquet": (write_parquet, ParquetReader()),
    "arrow file": (write_arrow_file, ArrowReader()),
    "arrow stream": (write_arrow_stream, ArrowReader()),
}


def read(reader, path, columns=("messages",)):
    return [record for chunk in reader.read(path, columns) for record in reader.records(chunk)]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_come_in_order_with_the_columns_that_are_of_use(tmp_path, kind):
    write, reader = KINDS[kind]
    write(tmp_path / "rows", pa.Table.from_pylist(ROWS))
    records = read(reader, tmp_path / "rows")
    assert [record.line for record in records] == list(range(1, len(ROWS) + 1))
    assert [record.value for record in records] == [{"messages": row["messages"]} for row in ROWS]


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_small_whatever_the_batches(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1024)
    write, reader = KINDS[kind]
    write(tmp_path / "rows", pa.Table.from_pylist(ROWS))
    chunks = list(reader.read(tmp_path / "rows", ("messages",)))
    assert len(chunks) > 5
    assert max(len(chunk.payload) for chunk in chunks) < 20_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_cut_off_is_an_error_with_its_byte(tmp_path, kind, share):
    write, reader = KINDS[kind]
    path = tmp_path / "rows"
    write(path, pa.Table.from_pylist(ROWS))
    size = int(path.stat().st_size * share)
    path.write_bytes(path.read_bytes()[:size])
    expected = DataError if kind == "parquet" else TruncatedDataError
    with pytest.raises(expected, match=f"byte {size}"):
        read(reader, path)


def test_a_stream_cut_off_gives_the_rows_before(tmp_path):
    path = tmp_path / "rows"
    write_arrow_stream(path, pa.Table.from_pylist(ROWS))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    chunks, reader = [], ArrowReader()
    with pytest.raises(TruncatedDataError) as error:
        chunks.extend(reader.read(path, ("messages",)))
    found = [record.value for chunk in chunks for record in reader.records(chunk)]
    assert found == [{"messages": row["messages"]} for row in ROWS[: len(found)]]
    assert error.value.line == len(found) + 1 > 1


def test_fields_that_other_rows_have_are_left_out(tmp_path):
    calls = [
        {"function": {"name": "f", "arguments": {"a": 1}}},
        {"function": {"name": "g", "arguments": {"b": [None]}}},
    ]
    rows = [{"messages": [{"role": "assistant", "content": None, "tool_calls": [c]}]} for c in calls]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    expected = [{"messages": [{"role": "assistant", "tool_calls": [c]}]} for c in calls]
    assert [record.value for record in read(ParquetReader(), tmp_path / "rows.parquet")] == expected


def test_a_table_without_a_column_of_use_has_rows_all_the_same(tmp_path):
    pq.write_table(pa.table({"a": [1, 2], "b": [3, 4]}), tmp_path / "rows.parquet")
    assert len(read(ParquetReader(), tmp_path / "rows.parquet")) == 2
    assert choose_columns(["a", "b"], ["b"]) == ["b"]
    assert choose_columns(["a", "b"], ["c"]) == ["a"]


def test_nulls_within_lists_stay():
    assert without_nulls({"a": [None, {"b": None, "c": 0}], "d": None}) == {"a": [None, {"c": 0}]}
    assert json.dumps(without_nulls({"x": False})) == '{"x": false}'
