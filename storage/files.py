"""Atomic commit of folders: staging, fsync, rename. No locks."""

import errno
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from storage.errors import CorruptObjectError, StoreFullError, StoreNotFoundError, StoreReadOnlyError, TornObjectError

STAGING = "tmp"
# To remove a large file keeps the kernel busy.
REMOVERS = 4
FULL = {errno.ENOSPC, errno.EDQUOT}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
TAKEN = {errno.ENOTEMPTY, errno.EEXIST}


@contextmanager
def clear_errors(path: Path, needed_bytes: Callable[[], int] | None = None) -> Iterator[None]:
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


@contextmanager
def staging(root: Path, needed_bytes: Callable[[], int] | None = None) -> Iterator[Path]:
    """Give a fresh staging folder below `root`; whatever was not committed is removed at the end.

    Raises:
        StoreNotFoundError: `root` is not a folder.
        StoreFullError, StoreReadOnlyError: as `clear_errors`.
    """
    if not root.is_dir():
        raise StoreNotFoundError(f"{root} is not a folder; create the store first")
    folder = root / STAGING / f"{host_name()}-{os.getpid()}-{uuid.uuid4().hex}"
    with clear_errors(root, needed_bytes):
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
        try:
            yield folder
        finally:
            if folder.exists():
                shutil.rmtree(folder)


def create_file(folder: Path, name: str) -> BinaryIO:
    """Open the new file `name`, which may have slashes, below a folder.

    Raises:
        FileNotFoundError: the folder is gone. It is not made again, since what was in it would then lack.
    """
    path = folder / name
    for parent in reversed(path.relative_to(folder).parents[:-1]):
        (folder / parent).mkdir(exist_ok=True)
    return path.open("xb")


def write_file(folder: Path, name: str, parts: Iterable[bytes]) -> int:
    """Create the file `name` below a folder with the bytes of `parts`, on disk when this returns; give their number."""
    with create_file(folder, name) as file:
        num_bytes = sum(file.write(part) for part in parts)
        file.flush()
        os.fsync(file.fileno())
    return num_bytes


def commit(staged: Path, final: Path) -> bool:
    """Rename a staged folder, whose files are on disk, into its place.

    Returns:
        True if this call committed; False if somebody else had, and `staged` is left for `staging` to remove.
    """
    for folder, _, _ in os.walk(staged, topdown=False):
        _sync_folder(Path(folder))
    make_folder(final.parent)
    try:
        staged.rename(final)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        raise
    _sync_folder(final.parent)
    return True


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step, replacing what is there."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    make_folder(path.parent)
    try:
        write_file(path.parent, temporary.name, [data])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


def mark(path: Path) -> None:
    """Create an empty file; one that is there already is fine."""
    make_folder(path.parent)
    with suppress(FileExistsError):
        write_file(path.parent, path.name, [])
    _sync_folder(path.parent)


def remove_folders(root: Path, folders: Iterable[Path]) -> None:
    """Remove folders, or files: each leaves its place in one step, then its files go. One that is gone is no error."""
    rest = iter(folders)
    with staging(root) as staged, ThreadPoolExecutor(REMOVERS) as pool:
        while batch := list(islice(rest, REMOVERS * 64)):
            list(pool.map(lambda place: _move_and_remove(place, staged / uuid.uuid4().hex), batch))


def _move_and_remove(place: Path, staged: Path) -> None:
    with suppress(FileNotFoundError):
        place.rename(staged)
        if staged.is_dir():
            shutil.rmtree(staged)
        else:
            staged.unlink()


def folder_bytes(folder: Path) -> int:
    """Return the sum of the sizes of all files below `folder`, or that of a file; what is missing has none."""
    total = _file_bytes(folder) if folder.is_file() else 0
    for parent, _, names in os.walk(folder):
        total += sum(_file_bytes(Path(parent, name)) for name in names)
    return total


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # compacted away since it was listed
        return 0


def host_name() -> str:
    """Return the name under which processes see each other by their ids."""
    # Containers may share a host name, but a process id means something in its own PID namespace alone.
    return f"{socket.gethostname()}.{Path('/proc/self/ns/pid').stat().st_ino}"


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, on disk when this returns."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def missing_is_torn(what: str) -> Iterator[None]:
    """Turn a missing file into a TornObjectError that names `what`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TornObjectError(f"{what} lacks {error.filename}; use aerie validate --repair") from error


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        FileNotFoundError: there is none.
        CorruptObjectError: the file holds something else.
    """
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise CorruptObjectError(f"{path} is not JSON: {error}; use aerie validate --repair") from error
    if not isinstance(document, dict):
        raise CorruptObjectError(f"{path} holds {type(document).__name__}, not an object; use aerie validate --repair")
    return document
