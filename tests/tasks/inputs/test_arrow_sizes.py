"""Tables that say, or become, far more than their bytes: refused in one line before memory is taken."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.errors import DataError, TruncatedDataError
from tasks.inputs.arrow_sizes import most_bytes
from tasks.inputs.formats import detect_format, reader_of
from tasks.rejections import RowRejectedError

ZEROS = pa.table({"text": ["0" * (8 << 20)] * 32})


def write_arrow(path: Path, table: pa.Table, compression: str | None, *, as_file: bool) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_file if as_file else pa.ipc.new_stream
    with make(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    return path


def read(path: Path) -> list[Any]:
    reader = reader_of(detect_format(path))
    return [record.value for chunk in reader.read(path, {"text"}) for record in reader.records(chunk)]


@pytest.mark.parametrize("as_file", [True, False], ids=["file", "stream"])
def test_an_arrow_file_that_unpacks_to_far_more_is_refused(tmp_path: Path, as_file: bool) -> None:
    path = write_arrow(tmp_path / "a.arrow", ZEROS, "zstd", as_file=as_file)
    assert path.stat().st_size < 100_000
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match="more than 100 times as many; it is damaged or made to fill memory") as refused:
        read(path)
    assert "\n" not in str(refused.value)
    assert pa.total_allocated_bytes() == before


def test_a_dictionary_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), ZEROS["text"].combine_chunks())
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": values}), "zstd", as_file=False)
    with pytest.raises(DataError, match="made to fill memory"):
        read(path)


def test_a_parquet_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(ZEROS, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match="made to fill memory"):
        read(path)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("as_file", [True, False], ids=["file", "stream"])
def test_text_that_packs_as_text_does_is_read(tmp_path: Path, compression: str | None, as_file: bool) -> None:
    rows = ["".join(map(str, np.random.default_rng(seed).integers(0, 9, 5000))) for seed in range(50)]
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": rows}), compression, as_file=as_file)
    assert read(path) == [{"text": row} for row in rows]


def test_rows_that_take_no_bytes_are_refused(tmp_path: Path) -> None:
    """To count a million of millions of them takes days."""
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": pa.nulls(12_345)}), None, as_file=False)
    few, many = (12_345).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little")
    assert path.read_bytes().count(few) == 3  # rows of the batch, rows and nulls of its column
    path.write_bytes(path.read_bytes().replace(few, many))
    with pytest.raises(DataError, match="says 1,099,511,627,776 rows, over 100 a byte"):
        read(path)


def share(values: pa.Array, times: int) -> Iterable[pa.Array]:
    ones = pa.array([0] * times, pa.int32())
    yield pa.DictionaryArray.from_arrays(ones, values)
    yield pa.RunEndEncodedArray.from_arrays(pa.array([times], pa.int32()), values)
    yield pa.ListArray.from_arrays(pa.array([0, times], pa.int32()), pa.DictionaryArray.from_arrays(ones, values))
    yield pa.StructArray.from_arrays([pa.DictionaryArray.from_arrays(ones, values)], ["a"])
    _, views, text = pa.array([values[0].as_py()], pa.string_view()).buffers()
    yield pa.Array.from_buffers(pa.string_view(), times, [None, pa.py_buffer(views.to_pybytes()[:16] * times), text])


def test_values_that_rows_share_are_counted_for_each() -> None:
    for array in share(pa.array(["x" * 1000]), 500):
        assert 500_000 <= most_bytes(array) < 600_000, array.type
        assert array.nbytes < 12_000


def test_a_row_over_the_limit_is_rejected_and_the_others_are_read(tmp_path: Path) -> None:
    long = "x" * (17 << 20)
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": ["a", long, "b"]}), None, as_file=False)
    first, second, third = read(path)
    assert (first, third) == ({"text": "a"}, {"text": "b"})
    assert isinstance(second, RowRejectedError)
    assert second.reason == "too_big"


def test_a_long_text_that_many_rows_share_is_made_for_none_of_them(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 200 + [1], pa.int32()), ["x" * (17 << 20), "short"])
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": values}), None, as_file=False)
    found = read(path)
    assert [getattr(row, "reason", row) for row in found] == ["too_big"] * 200 + [{"text": "short"}]


def test_list_views_are_refused(tmp_path: Path) -> None:
    values = pa.ListViewArray.from_arrays(pa.array([0, 0]), pa.array([2, 2]), pa.array(["a", "b"]))
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": values}), None, as_file=False)
    with pytest.raises(DataError, match="column 'text' has list views, which are not read; save it with lists"):
        read(path)


def test_a_text_that_is_no_unicode_costs_its_file_not_the_process(tmp_path: Path) -> None:
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": ["aaaaaaaa", "bbbbbbbb"]}), None, as_file=False)
    path.write_bytes(path.read_bytes().replace(b"bbbbbbbb", b"b\xff\xffbbbbb"))
    with pytest.raises(TruncatedDataError, match="Invalid UTF8"):
        read(path)


def test_offsets_that_point_elsewhere_are_found_before_a_value_is_taken(tmp_path: Path) -> None:
    """pyarrow itself takes them at their word."""
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": ["aaaaaaaa", "bbbbbbbb"]}), None, as_file=False)
    offsets = np.array([0, 8, 16], "<i4").tobytes()
    assert path.read_bytes().count(offsets) == 1
    path.write_bytes(path.read_bytes().replace(offsets, np.array([0, 1 << 30, 16], "<i4").tobytes()))
    with pytest.raises(TruncatedDataError):
        read(path)


def test_a_date_that_python_has_not_costs_its_row(tmp_path: Path) -> None:
    days = pa.array([0, 1 << 30], pa.date32())
    path = write_arrow(tmp_path / "a.arrow", pa.table({"text": days}), None, as_file=False)
    first, second = read(path)
    assert first["text"].year == 1970
    assert isinstance(second, RowRejectedError)
