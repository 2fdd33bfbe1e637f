"""The format of a file is told by its bytes."""

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from tasks.errors import DataError, DataNotFoundError
from tasks.inputs.formats import check_file, detect_format

GOOD = b'{"messages": [{"role": "user", "content": "a"}]}'


def write(folder, content, name="chats.jsonl"):
    path = folder / name
    path.write_bytes(content)
    return path


TEXTS = {
    "one line": (GOOD, "a.jsonl", "jsonl"),
    "no suffix": (GOOD, "a", "jsonl"),
    "lines in a .json": (GOOD + b"\n" + GOOD, "a.json", "jsonl"),
    "an array": (b" \n[" + GOOD + b"]", "a.json", "json"),
    "an array after a mark": (b"\xef\xbb\xbf[" + GOOD + b"]", "a", "json"),
    "a first line that is an array": (b'["a row that is none"]\n' + GOOD, "a.jsonl", "jsonl"),
    "gzip of lines": (gzip.compress(GOOD), "a.jsonl.gz", "jsonl"),
    "gzip of an array": (gzip.compress(b"[1]"), "a", "json"),
    "zstd of an array": (zstandard.compress(b"[1]"), "a.json.zst", "json"),
    "nothing": (b"", "a.jsonl", "jsonl"),
    "an array far behind": (b"\n" * (3 << 20) + b"[1]", "a.json", "json"),
}


@pytest.mark.parametrize(("content", "name", "format_"), TEXTS.values(), ids=TEXTS)
def test_text_is_lines_or_an_array(tmp_path, content, name, format_):
    assert detect_format(write(tmp_path, content, name)) == format_


def test_tables_are_known_by_their_first_bytes(tmp_path):
    table = pa.table({"text": ["a"]})
    pq.write_table(table, tmp_path / "p")
    with pa.ipc.new_file(str(tmp_path / "f"), table.schema) as file:
        file.write_table(table)
    with pa.ipc.new_stream(str(tmp_path / "s"), table.schema) as file:
        file.write_table(table)
    assert [detect_format(tmp_path / name) for name in "pfs"] == ["parquet", "arrow", "arrow"]


def test_what_is_no_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataNotFoundError, match="cannot be read"):
        detect_format(tmp_path / "gone.jsonl")
    with pytest.raises(DataNotFoundError, match="cannot be read"):
        detect_format(tmp_path)


@pytest.mark.parametrize(
    ("content", "name"), [(b"PK\x03\x04abc", "zip"), (b"BZh9", "bzip2"), (GOOD.decode().encode("utf-16"), "UTF-16")]
)
def test_another_format_is_named_with_its_cure(tmp_path, content, name):
    with pytest.raises(DataError, match=f"not JSON, Parquet or Arrow but {name}"):
        detect_format(write(tmp_path, content))


def test_a_huge_array_is_not_read_to_be_checked(tmp_path):
    path = write(tmp_path, b"[", "a.json")
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file: to read it takes hours
    check_file(path, "json", keep_cut_off=False)
    check_file(path, "jsonl", keep_cut_off=False)
