"""JSON Lines: one JSON object a line."""

from collections.abc import Collection, Iterator
from pathlib import Path

from tasks.errors import TruncatedDataError
from tasks.inputs.base import BLOCK_BYTES, MAX_ROW_BYTES, Chunk, Record
from tasks.inputs.blocks import BrokenStreamError, read_blocks
from tasks.inputs.json_rows import TOO_BIG, bare, make_record, parse_json
from tasks.rejections import RowRejectedError


class LinesReader:
    """Reads whole lines; blank ones are no rows."""

    def read(self, path: Path, columns: Collection[str]) -> Iterator[Chunk]:  # noqa: ARG002 - lines have no columns
        """Read chunks of whole lines; see `Reader.read`."""
        cutter = _Cutter()
        try:
            for block, position in read_blocks(path):
                yield from cutter.cut(block, position)
        except BrokenStreamError as error:
            yield from cutter.flush()
            problem = f"its compressed bytes cannot be unpacked ({error})"
            raise TruncatedDataError(path, cutter.line, cutter.byte, problem) from error
        if is_cut_off(cutter.rest):
            yield from cutter.flush()
            raise TruncatedDataError(path, cutter.line, cutter.byte + len(cutter.rest))
        yield from cutter.flush(with_rest=True)

    def records(self, chunk: Chunk) -> Iterator[Record]:
        """Parse each line that is not blank."""
        if chunk.payload == TOO_BIG:
            yield make_record(chunk.first, TOO_BIG)
            return
        for line, raw in enumerate(chunk.payload.split(b"\n"), start=chunk.first):
            if content := bare(raw):
                yield make_record(line, content)


def is_cut_off(raw: bytes) -> bool:
    """Say whether the last line of a file, which has no line break, begins an object and does not complete it."""
    content = bare(raw)
    if not content.startswith(b"{"):
        return False
    try:
        parse_json(content)
    except RowRejectedError:
        return True
    return False


class _Cutter:
    """Cuts blocks into chunks of whole lines.

    Attributes:
        rest: what came after the last line break.
        line: number of the line that `rest` begins.
        byte: bytes before it.
    """

    def __init__(self) -> None:
        self.rest = b""
        self.line, self.byte = 1, 0
        self._lines: list[bytes] = []
        self._size, self._first, self._position = 0, 1, 0
        self._skipping = False

    def cut(self, block: bytes, position: int) -> Iterator[Chunk]:
        self._position = position
        end = block.rfind(b"\n") + 1
        if not end:
            self.rest += block
            yield from self._shorten()
            return
        if self._skipping:
            yield from self._end_of_skipped(block)
            return
        whole, self.rest = self.rest + block[:end], block[end:]
        self._lines.append(whole)
        self._size += len(whole)
        self.line += whole.count(b"\n")
        self.byte += len(whole)
        if self._size >= BLOCK_BYTES:
            yield from self.flush()

    def flush(self, *, with_rest: bool = False) -> Iterator[Chunk]:
        """Give what has been cut; at the end of the file, with what has no line break."""
        payload = b"".join(self._lines) + (self.rest if with_rest else b"")
        if payload:
            yield Chunk(payload, self._first, self._position)
        self._lines, self._size, self._first = [], 0, self.line

    def _shorten(self) -> Iterator[Chunk]:
        """Let go of a line that is too long to be a row."""
        if self._skipping:
            self.byte += len(self.rest)
            self.rest = b""
        elif len(self.rest) > MAX_ROW_BYTES:
            yield from self.flush()
            yield Chunk(TOO_BIG, self.line, self._position)
            self._skipping = True
            self.byte += len(self.rest)
            self.rest = b""

    def _end_of_skipped(self, block: bytes) -> Iterator[Chunk]:
        start = block.find(b"\n") + 1
        self._skipping = False
        self.line += 1
        self.byte += start
        self._first = self.line
        if block[start:]:
            yield from self.cut(block[start:], self._position)
