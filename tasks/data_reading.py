"""Data files as chunks of rows, each with what it takes to make samples of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from pathlib import Path

from tasks.errors import TruncatedDataError
from tasks.inputs.base import Chunk, Reader, Record
from tasks.inputs.data_files import name_files
from tasks.inputs.formats import detect_format, reader_of
from tasks.inputs.shapes import find_shape
from tasks.rejections import RowRejectedError
from tasks.row_tokenizer import Outcome, Work
from tasks.token_options import TokenOptions
from tasks.tokenizer_crew import Job

# To tell the shape of a file's rows.
_LOOK_AT_ROWS, _LOOK_AT_CHUNKS = 100, 64


@dataclass(frozen=True)
class Mark:
    """Where the rows of a chunk come from: the file's short name, and how many bytes of all files are read with it."""

    file: str
    position: int


def read_all(data: Sequence[Path], options: TokenOptions) -> Iterator[Job[Mark]]:
    """Read files in chunks that a `Crew` takes, in order.

    Raises:
        DataError: a file cannot be read, or is cut off and that is to be refused.
    """
    starts = accumulate((path.stat().st_size for path in data), initial=0)
    for path, name, start in zip(data, name_files(data), starts, strict=False):
        yield from _read_file(path, name, start, options)


def _read_file(path: Path, name: str, start: int, options: TokenOptions) -> Iterator[Job[Mark]]:
    """Read one file; one that ends within a row is refused, or that row is rejected."""
    format_ = options.data_format or detect_format(path)
    reader = reader_of(format_)
    cuts: list[TruncatedDataError] = []
    chunks = _until_cut(reader.read(path, options.shape.known_columns()), cuts)
    first = list(_first_rows(reader, chunks))
    shape = options.shape.shape or find_shape((record.value for _, rows in first for record in rows), options.shape)
    for chunk in chain((chunk for chunk, _ in first), chunks):
        yield Mark(name, start + chunk.position), Work(chunk, format_, shape)
    for cut in cuts:
        if options.cut_off == "refuse":
            raise cut
        rejected = RowRejectedError("cut_off", f"at byte {cut.byte}: {cut.problem}")
        yield Mark(name, start + path.stat().st_size), [Outcome(cut.line, [rejected])]


def _until_cut(chunks: Iterator[Chunk], cuts: list[TruncatedDataError]) -> Iterator[Chunk]:
    """Give the chunks before the file is cut off, if it is; where that is goes into `cuts`."""
    try:
        yield from chunks
    except TruncatedDataError as error:
        cuts.append(error)


def _first_rows(reader: Reader, chunks: Iterator[Chunk]) -> Iterator[tuple[Chunk, list[Record]]]:
    """Read ahead as many chunks as it takes to tell the shape of a file's rows."""
    num_rows = 0
    for chunk in islice(chunks, _LOOK_AT_CHUNKS):
        rows = list(reader.records(chunk))
        yield chunk, rows
        num_rows += len(rows)
        if num_rows >= _LOOK_AT_ROWS:
            return
