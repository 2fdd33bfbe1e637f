"""JSON Lines: rows by line, in chunks, with files that were cut off named by line and byte."""

import gzip
import json
import tracemalloc

import pytest
import zstandard

from tasks.errors import TruncatedDataError
from tasks.inputs import base, json_rows, lines
from tasks.inputs.blocks import read_blocks
from tasks.inputs.formats import check_file
from tasks.inputs.lines import LinesReader
from tasks.inputs.shapes import ShapeRules, detect_shape, read_row
from tasks.rejections import REASONS, RowRejectedError

GOOD = b'{"messages": [{"role": "user", "content": "a"}]}'
READER = LinesReader()
PACKERS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}


def write(folder, content, name="chats.jsonl"):
    path = folder / name
    path.write_bytes(content)
    return path


def read(path):
    return [record for chunk in READER.read(path, ()) for record in READER.records(chunk)]


@pytest.fixture
def small_blocks(monkeypatch):
    """Read a few bytes at a time."""
    monkeypatch.setattr("tasks.inputs.blocks.BLOCK_BYTES", 64)
    monkeypatch.setattr(lines, "BLOCK_BYTES", 100)


@pytest.mark.parametrize(
    "content",
    [
        GOOD + b"\n" + GOOD + b"\n",
        GOOD + b"\n" + GOOD,
        GOOD + b"\r\n" + GOOD + b"\r\n",
        b"\xef\xbb\xbf" + GOOD + b"\n\n  \n" + GOOD + b"\n\n",
    ],
)
def test_line_ends_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path, content):
    path = write(tmp_path, content)
    check_file(path, "jsonl", keep_cut_off=False)
    assert [record.raw for record in read(path)] == [GOOD, GOOD]
    assert [record.value for record in read(path)] == [json.loads(GOOD)] * 2


@pytest.mark.usefixtures("small_blocks")
def test_lines_are_numbered_as_an_editor_does(tmp_path):
    content = b"".join(b"\n" * (i % 3) + GOOD + b"\n" for i in range(50))
    path = write(tmp_path, content)
    expected = [i for i, line in enumerate(content.split(b"\n"), start=1) if line]
    assert [record.line for record in read(path)] == expected
    assert len(list(READER.read(path, ()))) > 10


@pytest.mark.parametrize("packer", PACKERS)
def test_packed_files_are_unpacked_whatever_their_name(tmp_path, packer):
    content = b"".join(b'{"i": %d}\n' % i for i in range(200_000))
    path = write(tmp_path, PACKERS[packer](content))
    assert [record.value["i"] for record in read(path)] == list(range(200_000))
    chunks = list(READER.read(path, ()))
    assert len(chunks) > 1
    assert [chunk.position for chunk in chunks][-1] == path.stat().st_size


@pytest.mark.parametrize("packer", ["gzip", "zstd"])
def test_packed_files_may_be_joined(tmp_path, packer):
    path = write(tmp_path, PACKERS[packer](GOOD + b"\n") + PACKERS[packer](GOOD + b"\n"))
    assert len(read(path)) == 2


@pytest.mark.parametrize(("packer", "damage"), [("gzip", "cut"), ("zstd", "cut"), ("gzip", "flip")])
def test_a_packed_file_that_is_damaged_gives_the_rows_before(tmp_path, packer, damage):
    content = b"".join(b'{"i": %d, "x": "%x"}\n' % (i, hash(i * 7919) ** 5) for i in range(50_000))
    packed = bytearray(PACKERS[packer](content))
    at = len(packed) * 2 // 3
    if damage == "cut":
        del packed[at:]
    else:
        packed[at : at + 64] = bytes(64)
    path = write(tmp_path, bytes(packed))
    chunks = []
    with pytest.raises(TruncatedDataError, match="cannot be unpacked") as error:
        chunks.extend(READER.read(path, ()))
    found = [record.value for chunk in chunks for record in READER.records(chunk)]
    assert error.value.line == len(found) + 1
    assert damage == "flip" or found == [json.loads(line) for line in content.splitlines()[: len(found)]]
    assert len(found) > 1000 or damage == "flip"


@pytest.mark.parametrize("cut", [1, 10, len(GOOD) - 1])
@pytest.mark.parametrize("before", [b"", GOOD + b"\n", GOOD + b"\n\n" + b"x" * (3 << 20) + b"\n"])
def test_a_file_cut_off_in_a_row_is_named_with_line_and_byte(tmp_path, before, cut):
    path = write(tmp_path, before + GOOD[:cut])
    for look in (lambda: check_file(path, "jsonl", keep_cut_off=False), lambda: read(path)):
        with pytest.raises(TruncatedDataError) as error:
            look()
        assert (error.value.line, error.value.byte) == (before.count(b"\n") + 1, len(before) + cut)
        assert str(path) in str(error.value)


@pytest.mark.usefixtures("small_blocks")
def test_the_rows_before_the_cut_are_read(tmp_path):
    path = write(tmp_path, (GOOD + b"\n") * 9 + GOOD[:9])
    chunks = []
    with pytest.raises(TruncatedDataError):
        chunks.extend(READER.read(path, ()))
    assert sum(len(list(READER.records(chunk))) for chunk in chunks) == 9


def test_a_file_cut_off_in_a_character_is_cut_off(tmp_path):
    with pytest.raises(TruncatedDataError):
        check_file(write(tmp_path, GOOD + b"\n" + '{"messages": "é'.encode()[:-1]), "jsonl", keep_cut_off=False)


def test_a_broken_last_row_that_was_not_cut_off_is_left_to_be_rejected(tmp_path):
    for end in (b'{"messages": [\n', b"the end"):
        path = write(tmp_path, GOOD + b"\n" + end)
        check_file(path, "jsonl", keep_cut_off=False)
        assert [type(record.value) for record in read(path)] == [dict, RowRejectedError]


@pytest.mark.usefixtures("small_blocks")
def test_a_line_that_is_too_long_is_one_bad_row_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_ROW_BYTES", 1000)
    monkeypatch.setattr(json_rows, "MAX_ROW_BYTES", 1000)
    path = write(tmp_path, GOOD + b"\n" + b'{"x": "' + b"x" * 5000 + b'"}\n' + GOOD + b"\n" + GOOD)
    records = read(path)
    assert [record.line for record in records] == [1, 2, 3, 4]
    assert records[1].value.reason == "too_big"
    assert [record.value for record in records if record.line != 2] == [json.loads(GOOD)] * 3
    assert max(len(chunk.payload) for chunk in READER.read(path, ())) < 1200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"1" * 10_000, "invalid_json"),
        (b'{"messages": "\xff"}', "invalid_unicode"),
        (b"x" * (base.MAX_ROW_BYTES + 1), "too_big"),
    ],
)
def test_a_row_that_is_no_json_has_its_reason_and_hint(content, reason):
    value = json_rows.make_record(7, content).value
    assert value.reason == reason
    assert REASONS[reason] in value.hint


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_what_unpacks_to_far_more_is_read_in_bounded_memory(tmp_path, pack):
    """A quarter of a gigabyte in one line: rejected as too big, with no more in memory than a few rows may have."""
    path = write(tmp_path, pack(b"0" * (1 << 26)) * 4 + pack(b"\n" + GOOD + b"\n"), "a.jsonl.gz")
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        found = read(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [getattr(record.value, "reason", record.value) for record in found] == ["too_big", json.loads(GOOD)]
    assert peak < 160 << 20


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_a_line_in_frames_of_a_byte_each_comes_in_blocks(tmp_path, pack):
    """To add to a line for each of them would take time that grows with its square."""
    line = b'{"text": "' + b"x" * 20_000 + b'"}\n'
    path = write(tmp_path, b"".join(pack(line[i : i + 1]) for i in range(len(line))), "a.jsonl.gz")
    assert [len(block) for block, _ in read_blocks(path)] == [len(line)]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000 + "1" + "}" * 100_000], ids=["list", "object"])
def test_json_that_is_nested_without_end_costs_its_row(text):
    rules = ShapeRules()
    rows = [
        {"messages": text},
        {"messages": [{"role": "user", "content": "a"}], "tools": text},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": text}}]}]},
        {"conversations": [{"from": "function_call", "value": text}]},
    ]
    for row in rows:
        with pytest.raises(RowRejectedError):
            read_row(row, detect_shape(row, rules) or "messages", rules)


def test_a_file_cut_off_in_a_line_of_gigabytes_is_refused_without_reading_that_line(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(GOOD + b"\n" + GOOD + b"\n{")
        file.seek(1 << 28)
        file.write(b"\n" + GOOD[:-1])
    tracemalloc.start()
    try:
        with pytest.raises(TruncatedDataError, match="cut off in line 4"):
            check_file(path, "jsonl", keep_cut_off=False)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
