"""What is in a folder of exported files and where it came from: a header, and a line for each file that is there.

`aerie-export.json` says of which store, states and tokens the files are; `aerie-export-rows.jsonl` says of each file
which row it is of, its bytes, and their checksum. A line is written once its file is in its place, so that an export
which was stopped knows what it has; the last step writes all lines again, in the order of the rows.
"""

import fcntl
import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from storage.digests import is_digest
from storage.files import replace_file
from storage.limits import is_number
from tasks.errors import ExportError

HEADER = "aerie-export.json"
ROWS = "aerie-export-rows.jsonl"
STAGING = ".aerie-export"
# Of a 64-bit integer: times of files are in nanoseconds.
MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """A file that is in its place.

    Attributes:
        kept: number of its row among those that the tokens artifact keeps.
        row: 0-based number of the row over all data files.
        sample_hash: the sample.
        file: where it lies, below the folder.
        bytes: its size.
        crc32c: over all its bytes.
        mtime_ns: when it was written, by the file system's clock.
    """

    kept: int
    row: int
    sample_hash: str
    file: str
    bytes: int
    crc32c: int
    mtime_ns: int


class Manifest:
    """The manifest of a folder, held by one process at a time; a context manager.

    Args:
        folder: that of the files; made if it is not there.
        identity: what all files of the folder have in common.
        about: what else the header says.

    Attributes:
        entries: the files that are recorded, by their row among those kept.

    Raises:
        ExportError: something else is in the folder, or another process writes there.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        self._folder = folder
        self._identity = dict(identity)
        self._about = dict(about)
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self.entries: dict[int, Entry] = {}

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        header = _read_header(self._folder)
        if header is None:
            _require_empty(self._folder)
            self._write_header(is_complete=False)
        else:
            self._require_same(header)
        self._file = self._stack.enter_context((self._folder / ROWS).open("a+b", buffering=0))
        self._claim()
        self.entries = {entry.kept: entry for entry in _read_entries(self._folder / ROWS)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def add(self, entry: Entry) -> None:
        """Record a file that is in its place; from any thread."""
        with self._lock:
            self._file.write(_line(entry))
            self.entries[entry.kept] = entry

    def begin(self) -> None:
        """Say that something is about to be written; end a line that a killed process did not finish."""
        self._write_header(is_complete=False)
        self._file.write(b"\n")

    def complete(self) -> None:
        """Write all lines again, in the order of the rows, and a header that says that this is all."""
        lines = [_line(self.entries[kept]) for kept in sorted(self.entries)]
        replace_file(self._folder / ROWS, b"".join(lines))
        self._write_header(is_complete=True)

    def _write_header(self, *, is_complete: bool) -> None:
        document = {**self._identity, **self._about, "rows_file": ROWS, "complete": is_complete}
        replace_file(self._folder / HEADER, f"{json.dumps(document, indent=1)}\n".encode("ascii"))

    def _require_same(self, header: Mapping[str, Any]) -> None:
        for name, value in self._identity.items():
            if header.get(name) != value:
                other = f"another {name.replace('_', ' ')} ({header.get(name)!r:.200}, this one is of {value})"
                raise ExportError(f"{self._folder} has an export of {other}; give another folder")

    def _claim(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ExportError(f"another process exports to {self._folder}; wait for its end") from error


def _read_header(folder: Path) -> dict[str, Any] | None:
    try:
        header = json.loads((folder / HEADER).read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{folder / HEADER} is not JSON; give another folder") from error
    return header if isinstance(header, dict) else {}


def _require_empty(folder: Path) -> None:
    found = next(folder.iterdir(), None)
    if found is not None:
        raise ExportError(
            f"{folder} is not empty and no export (it holds {found.name!r}); trainers read whatever lies there: give "
            "an empty folder"
        )


def _read_entries(path: Path) -> Iterable[Entry]:
    with path.open("rb") as file:
        for line in file:
            # A line that was being written when the process died.
            with suppress(ValueError, TypeError, RecursionError):
                entry = Entry(**json.loads(line))
                if _is_sound(entry):
                    yield entry


def _is_sound(entry: Entry) -> bool:
    """Say whether an entry has what `add` writes; the manifest of a folder that was given away may hold anything."""
    numbers = (entry.kept, entry.row, entry.bytes, entry.crc32c, entry.mtime_ns)
    is_named = isinstance(entry.file, str) and isinstance(entry.sample_hash, str) and is_digest(entry.sample_hash)
    return is_named and all(is_number(number, MAX_NUMBER) for number in numbers)


def _line(entry: Entry) -> bytes:
    return json.dumps(asdict(entry)).encode("ascii") + b"\n"
