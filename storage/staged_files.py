"""Files of a file system, brought to disk, and what its errors mean."""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from storage.errors import CorruptObjectError, StoreFullError, StoreReadOnlyError

FULL = {errno.ENOSPC, errno.EDQUOT}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
TAKEN = {errno.ENOTEMPTY, errno.EEXIST}
# They wait and compute nothing; a sample has a dozen files and folders, and several are committed at a time.
SYNC_THREADS = 128


@contextmanager
def clear_errors(path: object, needed_bytes: Callable[[], int] | None = None) -> Iterator[None]:
    """Turn the OSErrors of a full or read-only file system into one-line storage errors.

    Args:
        path: what to name.
        needed_bytes: asked for the room that the whole step takes at most, once there is none left.

    Raises:
        StoreFullError: no room or quota left.
        StoreReadOnlyError: writing is refused.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            need = "" if needed_bytes is None else f" (up to {needed_bytes()} bytes were needed)"
            raise StoreFullError(f"no space left at {path}{need}; free some and run again") from error
        if error.errno in READ_ONLY:
            raise StoreReadOnlyError(f"cannot write at {path}: {error.strerror}; choose a writable store") from error
        raise


def create_file(folder: Path, name: str) -> BinaryIO:
    """Open the new file `name`, which may have slashes, below a folder.

    Raises:
        FileNotFoundError: the folder is gone. It is not made again, since what was in it would then lack.
    """
    path = folder / name
    for parent in reversed(path.relative_to(folder).parents[:-1]):
        (folder / parent).mkdir(exist_ok=True)
    return path.open("xb")


def write_file(folder: Path, name: str, parts: Iterable[bytes | memoryview]) -> int:
    """Create the file `name` below a staged folder with the bytes of `parts`; give their number. To commit syncs it."""
    with create_file(folder, name) as file:
        return sum(file.write(part) for part in parts)


def require_size(path: object, num_bytes: int, most: int | None) -> None:
    """Refuse a file that has more bytes than it may have, before it is read.

    Raises:
        CorruptObjectError: it has.
    """
    if most is not None and num_bytes > most:
        raise CorruptObjectError(
            f"{path} has {num_bytes} bytes, at most {most} were expected; use aerie validate --repair"
        )


def write_synced(path: Path, data: bytes) -> None:
    """Create a file, on disk when this returns."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, on disk when this returns."""
    for changed in make_unsynced(folder):
        _sync(changed)


def make_unsynced(folder: Path) -> list[Path]:
    """Make a folder and its parents; return the folders that have new names in them, which the caller syncs."""
    if folder.is_dir():
        return []
    changed = make_unsynced(folder.parent)
    folder.mkdir(exist_ok=True)
    return [*changed, folder.parent]


def sync_tree(folder: Path | str, *others: Path) -> None:
    """Bring all files of a folder to disk, and the names of all that is in it, and in some other folders.

    All at once: a file system with a journal then commits them together, and not one after the other.
    """
    deque(_syncers().map(_sync, chain(_tree(folder), others)), maxlen=0)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to disk."""
    _sync(folder)


def _tree(folder: Path | str) -> Iterator[Path | str]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir():
                yield from _tree(entry.path)
            else:
                yield entry.path
    yield folder


@cache
def _syncers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SYNC_THREADS, thread_name_prefix="sync")


# Threads do not cross to a child: it has its own.
os.register_at_fork(after_in_child=_syncers.cache_clear)


def _sync(path: Path | str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
