"""What a reader of data files is: chunks that cross to other processes, and the rows within them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tasks.rejections import RowRejectedError

# Of a text file that is read at a time, and what a chunk has at least; one costs tenths of a second to tokenize.
BLOCK_BYTES = 1 << 20
# Of one row; a million tokens have about 5 MB. To encode 50 MB of text took 12 GB of memory.
MAX_ROW_BYTES = 16 << 20


@dataclass(frozen=True)
class Chunk:
    """A few rows of one file.

    Attributes:
        payload: what `Reader.records` takes apart; bytes, or a list of bytes.
        first: number of its first line or row in the file, from 1.
        position: bytes of the file that have been read with it.
    """

    payload: Any
    first: int
    position: int


@dataclass(frozen=True)
class Record:
    """One row: the number of its line or row in the file, from 1, and its JSON value, or why it has none.

    `raw` is the row as it stands in a text file.
    """

    line: int
    value: Any | RowRejectedError
    raw: bytes | None = None


class Reader(Protocol):
    """One format of data files."""

    def read(self, path: Path, columns: Collection[str]) -> Iterator[Chunk]:
        """Read a file chunk by chunk, in memory that does not depend on its size.

        Args:
            path: the file.
            columns: names that are of use; formats with columns read no others.

        Raises:
            DataError: the file cannot be read at all.
            TruncatedDataError: it ends too early or is damaged from some byte on; after the last chunk before that.
        """
        ...

    def records(self, chunk: Chunk) -> Iterator[Record]:
        """Take a chunk apart; the same in any process."""
        ...
