"""Which format a data file has, and its reader."""

import codecs
import os
from pathlib import Path
from typing import BinaryIO, Literal

from tasks.errors import DataError, DataNotFoundError, TruncatedDataError
from tasks.inputs.base import BLOCK_BYTES, MAX_ROW_BYTES, Reader
from tasks.inputs.blocks import GZIP, ZSTD, BrokenStreamError, read_blocks
from tasks.inputs.json_arrays import ArrayReader
from tasks.inputs.json_rows import bare
from tasks.inputs.lines import LinesReader, is_cut_off

Format = Literal["jsonl", "json", "parquet", "arrow"]
LINE_SUFFIXES = {".jsonl", ".ndjson"}

PARQUET = b"PAR1"
ARROW_FILE = b"ARROW1"
# How an Arrow stream begins: a continuation marker (https://arrow.apache.org/docs/format/Columnar.html).
ARROW_STREAM = b"\xff\xff\xff\xff"

_TAIL_BYTES = 1 << 20
# First bytes of what people give by mistake, and what to do.
_OTHER_FORMATS: dict[bytes, str] = {
    b"PK\x03\x04": "zip: unpack it with unzip",
    b"BZh": "bzip2: unpack it with bunzip2",
    b"\xfd7zXZ": "xz: unpack it with unxz",
    codecs.BOM_UTF16_LE: "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
    codecs.BOM_UTF16_BE: "UTF-16: convert it with iconv -f UTF-16 -t UTF-8",
}


def reader_of(format_: Format) -> Reader:
    """Return the reader of a format."""
    if format_ == "jsonl":
        return LinesReader()
    if format_ == "json":
        return ArrayReader()
    from tasks.inputs.tables import ArrowReader, ParquetReader  # noqa: PLC0415 - who has no tables needs no pyarrow

    return ParquetReader() if format_ == "parquet" else ArrowReader()


def detect_format(path: Path) -> Format:
    """Tell the format of a file by its first bytes; of text, by its name too.

    Raises:
        DataNotFoundError: `path` does not exist, is not a file, or cannot be read.
        DataError: it begins as another format does.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise DataNotFoundError(
            f"{path} cannot be read: {error.strerror}; correct the path or its permissions"
        ) from error
    if start.startswith(PARQUET):
        return "parquet"
    if start.startswith((ARROW_FILE, ARROW_STREAM)):
        return "arrow"
    for magic, cure in _OTHER_FORMATS.items():
        if start.startswith(magic):
            raise DataError(f"{path} is not JSON, Parquet or Arrow but {cure}")
    # In a .jsonl a line may be an array by mistake.
    is_lines = bool(LINE_SUFFIXES & set(path.suffixes)) or not _first_bytes(path).startswith(b"[")
    return "jsonl" if is_lines else "json"


def check_file(path: Path, format_: Format, *, keep_cut_off: bool) -> None:
    """Refuse what cannot be a whole text file, as far as a look at its beginning or its last line can tell.

    Raises:
        TruncatedDataError: compressed bytes cannot be unpacked; the last line of JSON Lines begins an object, and
            neither completes it nor ends with a newline.
    """
    if keep_cut_off or format_ not in ("jsonl", "json"):
        return  # reading will tell
    with path.open("rb") as file:
        if file.read(len(ZSTD)).startswith((GZIP, ZSTD)):
            _check_packed(path)
            return
        last_line = _last_line(file) if format_ == "jsonl" else b""
    if not last_line.endswith(b"\n") and is_cut_off(last_line):
        with path.open("rb") as file:  # by blocks: one line may be the whole file
            num_lines = 1 + sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b""))
        raise TruncatedDataError(path, num_lines, path.stat().st_size)


def _check_packed(path: Path) -> None:
    try:
        next(read_blocks(path), None)
    except BrokenStreamError as error:
        raise TruncatedDataError(path, 1, 0, f"its compressed bytes cannot be unpacked ({error})") from error


def _first_bytes(path: Path) -> bytes:
    """Return the first block of the text that is not blank, without white space before it."""
    try:
        return next((bare(block) for block, _ in read_blocks(path) if bare(block)), b"")
    except BrokenStreamError:
        return b""  # reading will say so


def _last_line(file: BinaryIO) -> bytes:
    end = file.seek(0, os.SEEK_END)
    tail = b""
    while len(tail) < min(end, MAX_ROW_BYTES) and b"\n" not in tail[:-1]:
        start = max(0, end - len(tail) - _TAIL_BYTES)
        file.seek(start)
        tail = file.read(end - start)
    return tail[tail.rfind(b"\n", 0, -1) + 1 :]
