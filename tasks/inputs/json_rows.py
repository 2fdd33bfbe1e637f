"""One row of JSON."""

import codecs
import json
from typing import Any

from tasks.inputs.base import MAX_ROW_BYTES, Record
from tasks.rejections import RowRejectedError

# Stands for a row that was skipped since it is over `MAX_ROW_BYTES`.
TOO_BIG = b""


def bare(raw: bytes) -> bytes:
    """Return a line without white space around it and without a byte order mark."""
    return raw.removeprefix(codecs.BOM_UTF8).strip()


def make_record(line: int, raw: bytes) -> Record:
    """Parse one row; what is wrong with it becomes the record's value."""
    try:
        return Record(line, parse_json(raw), raw)
    except RowRejectedError as error:
        return Record(line, error, raw)


def parse_json(content: bytes) -> Any:
    """Parse one row.

    Raises:
        RowRejectedError: `invalid_unicode`, `invalid_json` or `too_big`.
    """
    if content == TOO_BIG or len(content) > MAX_ROW_BYTES:
        raise RowRejectedError("too_big", f"the row has over {MAX_ROW_BYTES:,} bytes")
    try:
        return parse_text(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowRejectedError(
            "invalid_unicode", f"byte {error.start} of the row is {content[error.start]:#04x}"
        ) from error
    except ValueError as error:
        raise RowRejectedError("invalid_json", str(error)) from error


def parse_text(text: str) -> Any:
    """Parse JSON of a data file, on its own or in a text of a row.

    Raises:
        ValueError: it is none, has a number of too many digits, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
