"""The file of a row, written from a store: staged, brought to disk, renamed; what is there and right is kept."""

import os
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from storage.codecs import Buffer, crc32c
from storage.files import clear_errors
from storage.staged_files import make_folder
from tasks.trainer_files.manifest import Entry, Manifest
from tasks.trainer_files.plan import ExportPlan
from tasks.trainer_files.row_reading import RowReader

_CHECK_BYTES = 1 << 20


class RowFiles:
    """The files of a plan's rows; may be shared by threads.

    Args:
        plan: what they hold.
        manifest: where those that are in their place are recorded.
        staging: a folder of the same file system.

    Attributes:
        written: how many were written.
    """

    def __init__(self, plan: ExportPlan, manifest: Manifest, staging: Path) -> None:
        self._plan = plan
        self._manifest = manifest
        self._staging = staging
        self._reader = RowReader(plan)
        self._lock = threading.Lock()
        self.written = 0

    def ensure(self, i: int) -> int:
        """See that the file of row `i` is there and right; return the row's tokens.

        Raises:
            CorruptObjectError: the stored states are damaged.
            StoreFullError, StoreReadOnlyError: the folder cannot be written.
        """
        kept = int(self._plan.kept[i])
        if not self._is_there(kept):
            self._note_writing()
            with clear_errors(self._plan.folder):
                self._write(i, kept)
        offsets = self._plan.tokens.offsets
        return int(offsets[kept + 1] - offsets[kept])

    def _is_there(self, kept: int) -> bool:
        """Say whether a file is what was written: its size and time tell, or its bytes."""
        entry = self._manifest.entries.get(kept)
        if entry is None:
            return False
        path = self._plan.folder / entry.file
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        if status.st_size != entry.bytes:
            return False
        if status.st_mtime_ns != entry.mtime_ns:  # that of a copied folder
            if _checksum(path) != entry.crc32c:
                return False
            self._manifest.add(replace(entry, mtime_ns=status.st_mtime_ns))
        return True

    def _note_writing(self) -> None:
        with self._lock:
            if not self.written:
                self._manifest.begin()
            self.written += 1

    def _write(self, i: int, kept: int) -> None:
        plan, place, staged = self._plan, self._plan.place(i), self._staging / uuid.uuid4().hex
        tensors = plan.form.make_tensors(self._reader.read(i))
        try:
            with staged.open("xb", buffering=0) as file:
                checked = _CheckedFile(cast("BinaryIO", file))
                plan.form.write(cast("BinaryIO", checked), tensors)
                os.fsync(file.fileno())
            mtime_ns = staged.stat().st_mtime_ns
            make_folder((plan.folder / place).parent)
            staged.rename(plan.folder / place)
        finally:
            staged.unlink(missing_ok=True)
        number, size = int(plan.tokens.rows[kept]), checked.num_bytes
        self._manifest.add(Entry(kept, number, plan.sample_hash(i), place, size, checked.checksum, mtime_ns))


class _CheckedFile:
    """An open file whose bytes are counted and summed up as they are written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.num_bytes = self.checksum = 0

    def write(self, data: Buffer) -> int:
        """Write all of some bytes; a system call may take fewer."""
        rest = memoryview(data).cast("B")
        self.checksum = crc32c(rest, self.checksum)
        self.num_bytes += len(rest)
        while rest:
            rest = rest[self._file.write(rest) :]
        return len(data)

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while data := file.read(_CHECK_BYTES):
            checksum = crc32c(data, checksum)
    return checksum
