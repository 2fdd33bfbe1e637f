"""One array of rows, whatever the blocks in which its bytes come."""

import gzip
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.errors import TruncatedDataError
from tasks.inputs import json_arrays
from tasks.inputs.json_arrays import ArrayReader, ArraySplitter
from tasks.rejections import RowRejectedError

READER = ArrayReader()
ODD = [{"a": 'x\\"]},{[', "b": [1, {"c": None}]}, [1, 2], "s,]", 3, {"é": "\\\\"}, {}]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def split(data, size):
    splitter = ArraySplitter()
    found = [e for start in range(0, len(data), size) for e in splitter.split(data[start : start + size])]
    return found, splitter


def read(path):
    return [record for chunk in READER.read(path, ()) for record in READER.records(chunk)]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(VALUES, max_size=5), size=st.integers(1, 40), indent=st.sampled_from([None, 1]), ascii_=st.booleans()
)
def test_any_array_is_taken_apart_in_blocks_of_any_size(rows, size, indent, ascii_):
    found, splitter = split(json.dumps(rows, indent=indent, ensure_ascii=ascii_).encode("utf-8", "surrogatepass"), size)
    assert [json.loads(element) for element in found] == rows
    assert splitter.is_complete


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_an_array_that_is_cut_anywhere_gives_the_rows_before(size):
    data = json.dumps(ODD).encode()
    for cut in range(len(data)):
        found, splitter = split(data[:cut], size)
        assert not splitter.is_complete
        assert [json.loads(element) for element in found] == ODD[: len(found)]


def test_white_space_a_byte_order_mark_and_a_last_comma_are_let_pass():
    assert split(b"\xef\xbb\xbf\n [ 1 , 2 ,\n] \n", 1)[0] == [b"1", b"2"]
    assert split(b" [ ] ", 2)[0] == []


def test_rows_are_numbered_and_bad_ones_are_rejected_alone(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(b'[{"a": 1},\n\n{"a" 2}, , {"a": 3}]')
    found = [(record.line, getattr(record.value, "reason", record.value)) for record in read(path)]
    assert found == [(1, {"a": 1}), (2, "invalid_json"), (3, "invalid_json"), (4, {"a": 3})]


@pytest.mark.parametrize("cut", [9, 14, 15])
def test_an_array_cut_off_is_named_with_row_and_byte(tmp_path, cut):
    path = tmp_path / "rows.json"
    path.write_bytes(b'[{"a":1},{"b":2}]'[:cut])
    with pytest.raises(TruncatedDataError, match="row 2, at byte 9: the array is not closed"):
        read(path)


def test_what_follows_an_array_is_named(tmp_path):
    path = tmp_path / "rows.json"
    path.write_bytes(b"[1]\n[2]")
    with pytest.raises(TruncatedDataError, match="something follows"):
        read(path)


def test_a_packed_array_is_unpacked(tmp_path):
    path = tmp_path / "rows.json.gz"
    path.write_bytes(gzip.compress(json.dumps(ODD * 1000).encode()))
    assert [record.value for record in read(path)] == ODD * 1000
    assert len(list(READER.read(path, ()))) > 1


def test_an_element_that_is_too_long_is_one_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr(json_arrays, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr("tasks.inputs.blocks.BLOCK_BYTES", 64)
    path = tmp_path / "rows.json"
    path.write_bytes(json.dumps([1, {"x": ["y" * 5000, "]"]}, 3]).encode())
    records = read(path)
    assert (records[0].value, records[1].value.reason, records[2].value) == (1, "too_big", 3)
    assert isinstance(records[1].value, RowRejectedError)
