import gzip
import json

import pytest

from tasks.chats import REASONS, RowRejectedError, check_file, parse_chat, read_rows
from tasks.errors import DataError, DataNotFoundError, TruncatedDataError

GOOD = b'{"messages": [{"role": "user", "content": "a"}]}'


def write(folder, content):
    path = folder / "chats.jsonl"
    path.write_bytes(content)
    return path


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
    check_file(path)
    assert [row.content for row in read_rows(path)] == [GOOD, GOOD]


def test_lines_are_numbered_as_an_editor_does(tmp_path):
    assert [row.line for row in read_rows(write(tmp_path, b"\n" + GOOD + b"\n\n" + GOOD))] == [2, 4]


@pytest.mark.parametrize("cut", [1, 10, len(GOOD) - 1])
@pytest.mark.parametrize("before", [b"", GOOD + b"\n", GOOD + b"\n\n" + b"x" * (3 << 20) + b"\n"])
def test_a_file_cut_off_in_a_row_is_named_with_line_and_byte(tmp_path, before, cut):
    path = write(tmp_path, before + GOOD[:cut])
    with pytest.raises(TruncatedDataError) as error:
        check_file(path)
    assert (error.value.line, error.value.byte) == (before.count(b"\n") + 1, len(before) + cut)
    assert str(path) in str(error.value)


def test_a_file_cut_off_in_a_character_is_cut_off(tmp_path):
    with pytest.raises(TruncatedDataError):
        check_file(write(tmp_path, GOOD + b"\n" + '{"messages": "é'.encode()[:-1]))


def test_a_broken_last_row_that_was_not_cut_off_is_left_to_be_rejected(tmp_path):
    check_file(write(tmp_path, GOOD + b"\n" + b'{"messages": [\n'))
    check_file(write(tmp_path, GOOD + b"\n" + b"the end"))


def test_what_is_no_file_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataNotFoundError, match="cannot be read"):
        check_file(tmp_path / "gone.jsonl")
    with pytest.raises(DataNotFoundError, match="is a folder"):
        check_file(tmp_path)


@pytest.mark.parametrize(
    ("content", "name"),
    [(gzip.compress(GOOD), "gzip"), (b"PAR1abc", "Parquet"), (GOOD.decode().encode("utf-16"), "UTF-16")],
)
def test_another_format_is_named_with_its_cure(tmp_path, content, name):
    with pytest.raises(DataError, match=f"not JSON Lines but {name}"):
        check_file(write(tmp_path, content))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "invalid_json"),
        (b"[" * 100_000, "invalid_json"),
        (b"1" * 10_000, "invalid_json"),
        (b'{"messages": "\xff"}', "invalid_unicode"),
        (b"null", "not_an_object"),
        (b"[1]", "not_an_object"),
        (b'"text"', "not_an_object"),
        (b"{}", "no_messages"),
        (b'{"messages": []}', "no_messages"),
        (b'{"messages": {"role": "user"}}', "no_messages"),
        (b'{"messages": ["hello"]}', "bad_message"),
        (b'{"messages": [{"role": "user"}]}', "bad_message"),
        (b'{"messages": [{"content": "a"}]}', "bad_message"),
        (b'{"messages": [{"role": "user", "content": null}]}', "bad_message"),
        (b'{"messages": [{"role": 1, "content": "a"}]}', "bad_message"),
        (b'{"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}', "bad_message"),
    ],
)
def test_a_row_that_is_no_chat_has_its_reason_and_hint(content, reason):
    with pytest.raises(RowRejectedError) as error:
        parse_chat(content)
    assert error.value.reason == reason
    assert REASONS[reason] in error.value.hint


def test_other_keys_of_row_and_message_reach_the_template():
    message = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    chat = parse_chat(json.dumps({"id": 1, "messages": [message], "tools": [{"type": "function"}]}).encode())
    assert chat.messages == [message]
    assert chat.tools == [{"type": "function"}]
