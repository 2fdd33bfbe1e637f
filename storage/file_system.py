"""The store on a file system: folders are staged, brought to disk, and renamed into their place. No locks."""

import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import TypeVar

from storage.digests import is_digest
from storage.errors import NotAStoreError, StoreNotFoundError, StoreReadOnlyError
from storage.local_reader import LocalReader
from storage.staged_files import (
    TAKEN,
    clear_errors,
    make_folder,
    make_unsynced,
    require_size,
    sync_folder,
    sync_tree,
    write_synced,
)

T = TypeVar("T")
R = TypeVar("R")

STAGING = "tmp"
DOCUMENT = "zarr.json"
PREFIX_LENGTH = 2
# To remove a large file keeps the kernel busy.
REMOVERS = 4


class FileSystem:
    """Stores on a file system: a `backends.Backend`."""

    min_threads = 1

    def check_place(self, root: Path) -> None:
        """Refuse a place that cannot be written."""
        parent = _existing_parent(root)
        if not os.access(parent, os.W_OK):
            raise StoreReadOnlyError(f"{parent} cannot be written; choose a writable store")

    def make_root(self, root: Path) -> None:
        """Make the folder of a store, and those above it."""
        if root.exists() and not root.is_dir():
            raise NotAStoreError(f"{root} is a file; give the path of a folder")
        with clear_errors(root):
            try:
                root.mkdir(parents=True, exist_ok=True)
            except (
                FileNotFoundError,
                NotADirectoryError,
                FileExistsError,
            ) as error:  # such as below a file, or in /proc
                raise NotAStoreError(f"{root} cannot be made: {error.strerror}; choose another place") from error

    def prove_writable(self, root: Path) -> None:
        """Make a staging folder."""
        with self.staging(root):
            pass

    def free_bytes(self, root: Path) -> int:
        """Return the free space of the file system of a store that is there, or is to be."""
        return shutil.disk_usage(_existing_parent(root)).free

    def staging_bytes(self, root: Path) -> int:
        """Return the free space of the store's file system: staging is in the store."""
        return shutil.disk_usage(root).free

    @contextmanager
    def staging(self, root: Path, needed_bytes: Callable[[], int] | None = None) -> Iterator[Path]:
        """Give a fresh folder in the store's `tmp`."""
        if not root.is_dir():
            raise StoreNotFoundError(f"{root} is not a folder; create the store first")
        folder = root / STAGING / staging_name()
        with clear_errors(root, needed_bytes):
            folder.parent.mkdir(exist_ok=True)
            folder.mkdir()
            try:
                yield folder
            finally:
                if folder.exists():
                    shutil.rmtree(folder)

    def commit(self, staged: Path, place: Path, root: Path, *, read_back: bool) -> Path | None:  # noqa: ARG002 - the protocol's
        """Rename a staged folder into its place; what was on disk before is there after, with nothing to read back."""
        sync_tree(staged, *make_unsynced(place.parent))
        try:
            staged.rename(place)
        except OSError as error:
            if error.errno in TAKEN:
                return None
            raise
        sync_folder(place.parent)
        return place

    def replace_file(self, path: Path, data: bytes) -> None:
        """Write a file beside it, and rename that."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        make_folder(path.parent)
        try:
            write_synced(temporary, data)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)

    def mark(self, path: Path) -> None:
        """Create an empty file."""
        make_folder(path.parent)
        with suppress(FileExistsError):
            write_synced(path, b"")
        sync_folder(path.parent)

    def remove(self, root: Path, places: Iterable[Path]) -> None:
        """Rename each into a staging folder, then remove it there."""
        rest = iter(places)
        with self.staging(root) as staged, ThreadPoolExecutor(REMOVERS) as pool:
            while batch := list(islice(rest, REMOVERS * 64)):
                list(pool.map(lambda place: _move_and_remove(place, staged / uuid.uuid4().hex), batch))

    def set_aside(self, place: Path, quarantine: Path, root: Path) -> bool:  # noqa: ARG002 - the protocol's
        """Rename it."""
        make_folder(quarantine)
        for n in count(1):
            target = quarantine / f"{place.name}-{n}"
            if target.exists():  # a file would be replaced
                continue
            try:
                place.rename(target)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
            else:
                return True
        raise AssertionError("count() does not end")

    def find_group(self, place: Path) -> Path:
        """Return the place: a group is in it, or nowhere."""
        return place

    def has_group(self, place: Path) -> bool:
        """Say whether something is there: nothing but groups comes into their places."""
        return place.exists()

    def group_names(self, folder: Path) -> list[str]:
        """List the folders that are named by a digest."""
        return sorted(name for name in self.names(folder) if is_digest(name))

    def loose_hashes(self, folder: Path) -> Iterator[str]:
        """List two levels of folders."""
        for prefix in _entries(folder):
            if len(prefix.name) == PREFIX_LENGTH and prefix.is_dir():
                yield from (name for name in _names(prefix.path) if is_digest(name) and name.startswith(prefix.name))

    def group_documents(self, root: Path) -> Iterator[Path]:
        """Look for them where groups have their places."""
        for pattern in ("objects/*/*/*", "packs/*/*", "tokens/*"):
            yield from root.glob(f"{pattern}/{DOCUMENT}")

    def leftovers(self, root: Path) -> list[Path]:  # noqa: ARG002 - the protocol's
        """List nothing: whatever is not in its place is in `tmp`."""
        return []

    def last_change(self, staged: Path) -> float:
        """Return the latest time of change of a folder and all in it."""
        return max(path.stat().st_mtime for path in (staged, *staged.rglob("*")))

    def names(self, folder: Path) -> list[str]:
        """List a folder."""
        return [entry.name for entry in _entries(folder)]

    def exists(self, path: Path) -> bool:
        """Say whether there is such a file or folder."""
        return path.exists()

    def is_folder(self, path: Path) -> bool:
        """Say whether there is such a folder."""
        return path.is_dir()

    def num_bytes(self, place: Path) -> int:
        """Add up the sizes of files."""
        total = _file_bytes(place) if place.is_file() else 0
        for parent, _, names in os.walk(place):
            total += sum(_file_bytes(Path(parent, name)) for name in names)
        return total

    def read_bytes(self, path: Path, most: int | None = None) -> bytes:
        """Read a file."""
        with path.open("rb", buffering=0) as file:
            require_size(path, os.fstat(file.fileno()).st_size, most)
            return file.readall()

    def each(self, read: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call it for one after the other."""
        return map(read, items)

    def open(self, path: str) -> LocalReader:
        """Open a file."""
        return LocalReader(path)

    def local_folder(self, folder: Path) -> Path:
        """Return the folder itself."""
        return folder

    def publish(self, local: Path, folder: Path) -> None:
        """Do nothing: the folder is the same."""


def host_name() -> str:
    """Return the name under which processes see each other by their ids."""
    # Containers may share a host name, but a process id means something in its own PID namespace alone.
    return f"{socket.gethostname()}.{Path('/proc/self/ns/pid').stat().st_ino}"


def staging_name() -> str:
    """Return a fresh name for what this process stages."""
    return f"{host_name()}-{os.getpid()}-{uuid.uuid4().hex}"


def _existing_parent(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = path.absolute()
    return path if path.exists() else _existing_parent(path.parent)


def _move_and_remove(place: Path, staged: Path) -> None:
    with suppress(FileNotFoundError):
        place.rename(staged)
        if staged.is_dir() and not staged.is_symlink():  # of a link the link goes, and nothing that it leads to
            shutil.rmtree(staged)
        else:
            staged.unlink()


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            yield from found
    except FileNotFoundError:
        return


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - of a million names, a path each takes longer than the listing
    except FileNotFoundError:
        return []


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # compacted away since it was listed
        return 0
