"""One JSON array of rows, taken apart without holding it."""

import codecs
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from tasks.errors import TruncatedDataError
from tasks.inputs.base import BLOCK_BYTES, MAX_ROW_BYTES, Chunk, Record
from tasks.inputs.blocks import BrokenStreamError, read_blocks
from tasks.inputs.json_rows import TOO_BIG, bare, make_record

_STRUCTURE = re.compile(rb'["\[\]{},]')
# What of a string can be passed over: up to its end, or to a backslash whose character has not been read yet.
_WITHIN_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
# What an element takes at least, beside its bytes.
_ELEMENT_BYTES = 256
_OPENING, _CLOSING = b"[{", b"]}"


class ArrayReader:
    """Reads the elements of an array; rows are counted, whatever lines they stand on."""

    def read(self, path: Path, columns: Collection[str]) -> Iterator[Chunk]:  # noqa: ARG002 - arrays have no columns
        """Read chunks of elements; see `Reader.read`."""
        splitter = ArraySplitter()
        elements: list[bytes] = []
        first, size, position, problem = 1, 0, 0, "the array is not closed"
        try:
            for block, position in read_blocks(path):
                for element in splitter.split(block):
                    elements.append(element)
                    size += len(element) + _ELEMENT_BYTES
                    if size >= BLOCK_BYTES:
                        yield Chunk(elements, first, position)
                        first, size, elements = first + len(elements), 0, []
        except BrokenStreamError as error:
            problem = f"its compressed bytes cannot be unpacked ({error})"
        if elements:
            yield Chunk(elements, first, position)
        if not splitter.is_complete:
            raise TruncatedDataError(path, first + len(elements), splitter.byte, splitter.problem or problem, "row")

    def records(self, chunk: Chunk) -> Iterator[Record]:
        """Parse each element."""
        for line, element in enumerate(chunk.payload, start=chunk.first):
            yield make_record(line, element)


class ArraySplitter:
    """Finds the elements of an array as its bytes come; an element is not looked into but for where it ends.

    Attributes:
        byte: how many bytes have been understood.
        problem: what is wrong with the array, but that it is not closed.
    """

    def __init__(self) -> None:
        self.byte = 0
        self.problem = ""
        self._buffer = b""
        self._start = self._at = 0  # of the element in the buffer; how far it is understood
        self._depth, self._is_string, self._is_big = 0, False, False

    @property
    def is_complete(self) -> bool:
        """Whether the array is closed and nothing follows."""
        return self._depth < 0 and not self.problem

    def split(self, block: bytes) -> Iterator[bytes]:
        """Give the elements that end within the block."""
        self._buffer += block
        if self._depth == 0:
            self._begin()
        while self._depth > 0 and self._step():
            if self._depth == 1 and self._buffer[self._at - 1 : self._at] == b",":
                yield self._take()
            elif self._depth == 0:
                last = self._take()
                self._depth = -1
                if last != b" ":  # nothing, or a trailing comma, ends the array without another element
                    yield last
        self._let_go()

    def _begin(self) -> None:
        start = bare(self._buffer)
        if start.startswith(b"["):
            self._start = self._at = self._buffer.index(b"[") + 1
            self._depth = 1
        elif len(start) > len(codecs.BOM_UTF8):
            self.problem = f"it does not begin with [ but with {start[:8]!r}"

    def _step(self) -> bool:
        """Move past the next string, bracket or comma; False where more bytes are needed."""
        if self._is_string:
            self._at = _WITHIN_STRING.match(self._buffer, self._at).end()  # type: ignore[union-attr] # it matches nothing, too
            if self._buffer[self._at : self._at + 1] != b'"':
                return False
            self._is_string = False
            self._at += 1
        found = _STRUCTURE.search(self._buffer, self._at)
        if found is None:
            self._at = len(self._buffer)
            return False
        self._at = found.end()
        character = found[0]
        self._is_string = character == b'"'
        self._depth += (character in _OPENING) - (character in _CLOSING)
        return True

    def _take(self) -> bytes:
        """Cut off the element that ends before the comma or bracket just passed."""
        element = TOO_BIG if self._is_big else self._buffer[self._start : self._at - 1].strip() or b" "
        self._is_big = False
        self._start = self._at
        return element

    def _let_go(self) -> None:
        """Forget what has been given, and an element that is too long to be a row."""
        if self._depth < 0:
            rest = self._buffer[self._start :].strip()
            self.problem = self.problem or (f"something follows the end of the array ({rest[:8]!r})" if rest else "")
            self._start = self._start if rest else len(self._buffer)
        elif self._at - self._start > MAX_ROW_BYTES:
            self._is_big = True
            self._start = self._at
        self._buffer = self._buffer[self._start :] if not self.problem else b""
        self.byte += self._start
        self._start, self._at = 0, self._at - self._start
