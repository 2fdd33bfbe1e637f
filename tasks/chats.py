"""Rows of chats in JSON Lines files, and the reasons why a row cannot be used."""

import codecs
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tasks.errors import DataError, DataNotFoundError, TruncatedDataError

Message = Mapping[str, Any]

REASONS: dict[str, str] = {
    "invalid_unicode": "the row is not UTF-8, or has an unpaired surrogate; write it as UTF-8 again",
    "invalid_json": "each line must be one JSON object; a JSON array is cut into lines by jq -c '.[]'",
    "not_an_object": 'each line must be a JSON object with "messages"',
    "no_messages": '"messages" must be a list with at least one message',
    "bad_message": 'each message must be an object whose "role" and "content" are strings',
    "template_error": "the model's chat template refuses these messages; mind the order of roles",
    "unstable_template": "the chat template changes earlier turns when later ones are added, so that no mask is sure; "
    "cut the chat after its first answer, or give the model a template with {% generation %} tags",
    "empty": "the chat template rendered no token",
    "nothing_to_supervise": "no token of an assistant turn is left; the chat needs an assistant message",
    "too_long": "raise max_length, set too_long to truncate, or cut the chat",
}

_TAIL_BYTES = 1 << 20

# First bytes of what people give by mistake instead of JSON Lines, and how to make JSON Lines of it.
_OTHER_FORMATS: dict[bytes, str] = {
    b"\x1f\x8b": "gzip: unpack it with gunzip",
    b"\x28\xb5\x2f\xfd": "zstd: unpack it with unzstd",
    b"PK\x03\x04": "zip: unpack it with unzip",
    b"PAR1": "Parquet: convert it to JSON Lines",
    codecs.BOM_UTF16_LE: "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
}


class RowRejectedError(Exception):
    """One row cannot be used; `reason` is a key of `REASONS`, `hint` says what to do about it."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        self.hint = f"{detail}; {REASONS[reason]}" if detail else REASONS[reason]
        super().__init__(f"{reason}: {self.hint}")


@dataclass(frozen=True)
class Row:
    """One line that is not blank; `line` counts from 1, `num_bytes` is its length in the file."""

    file: Path
    line: int
    content: bytes
    num_bytes: int


@dataclass(frozen=True)
class Chat:
    """The messages of one row, and the tools it declares, as the chat template takes them."""

    messages: Sequence[Message]
    tools: Sequence[Any] | None


def check_file(path: Path) -> None:
    """Refuse what cannot be a whole JSON Lines file, by its first bytes and its last line.

    Raises:
        DataNotFoundError: `path` does not exist, is not a file, or cannot be read.
        DataError: it begins as another format does.
        TruncatedDataError: the last line begins a JSON object, and neither completes it nor ends with a newline.
    """
    if path.is_dir():
        raise DataNotFoundError(f"{path} is a folder; name the .jsonl files in it")
    try:
        with path.open("rb") as file:
            start, last_line = file.read(4), _last_line(file)
    except OSError as error:
        raise DataNotFoundError(
            f"{path} cannot be read: {error.strerror}; correct the path or its permissions"
        ) from error
    for magic, cure in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise DataError(f"{path} is not JSON Lines but {cure}")
    if not last_line.endswith(b"\n") and _is_cut_off(last_line):
        with path.open("rb") as file:
            num_lines = sum(1 for _ in file)
        raise TruncatedDataError(path, num_lines, path.stat().st_size)


def read_rows(path: Path) -> Iterator[Row]:
    """Read the lines that are not blank, one at a time, without a byte order mark."""
    with path.open("rb") as file:
        for line, raw in enumerate(file, start=1):
            content = _bare(raw)
            if content:
                yield Row(path, line, content, len(raw))


def parse_chat(content: bytes) -> Chat:
    """Parse one row.

    Raises:
        RowRejectedError: it is not a JSON object with messages whose role and content are strings.
    """
    row = _parse_json(content)
    if not isinstance(row, dict):
        raise RowRejectedError("not_an_object", f"it is a {type(row).__name__}")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RowRejectedError("no_messages")
    for index, message in enumerate(messages):
        _check_message(index, message)
    return Chat(messages, row.get("tools"))


def _bare(raw: bytes) -> bytes:
    return raw.removeprefix(codecs.BOM_UTF8).strip()


def _last_line(file: BinaryIO) -> bytes:
    end = file.seek(0, os.SEEK_END)
    tail = b""
    while len(tail) < end and b"\n" not in tail[:-1]:
        start = max(0, end - len(tail) - _TAIL_BYTES)
        file.seek(start)
        tail = file.read(end - start)
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]


def _is_cut_off(raw: bytes) -> bool:
    content = _bare(raw)
    if not content.startswith(b"{"):
        return False
    try:
        _parse_json(content)
    except RowRejectedError:
        return True
    return False


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowRejectedError(
            "invalid_unicode", f"byte {error.start} of the row is {content[error.start]:#04x}"
        ) from error
    # Beside JSONDecodeError: a number of too many digits, or too deep a nesting.
    except (ValueError, RecursionError) as error:
        raise RowRejectedError("invalid_json", str(error)) from error


def _check_message(index: int, message: Any) -> None:
    if not isinstance(message, dict):
        raise RowRejectedError("bad_message", f"message {index} is a {type(message).__name__}")
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise RowRejectedError("bad_message", f"the {key} of message {index} is {type(message.get(key)).__name__}")
