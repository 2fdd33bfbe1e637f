"""Files and groups of a store, wherever it lies: each function asks the backend of its path."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from storage.backends import Backend
from storage.errors import CorruptObjectError, TornObjectError
from storage.file_system import STAGING, FileSystem, host_name
from storage.limits import MAX_DOCUMENT_BYTES
from storage.paths import ObjectPath, StorePath
from storage.staged_files import clear_errors, create_file, write_file

__all__ = [
    "STAGING",
    "backend_of",
    "clear_errors",
    "commit",
    "create_file",
    "default_threads",
    "exists",
    "find_group",
    "folder_bytes",
    "has_group",
    "host_name",
    "mark",
    "missing_is_torn",
    "names",
    "read_bytes",
    "read_document",
    "remove_folders",
    "replace_file",
    "set_aside",
    "staging",
    "total_bytes",
    "write_file",
]

P = TypeVar("P", bound=StorePath)

FILE_SYSTEM = FileSystem()


@cache
def _object_storage() -> Backend[Any]:
    from storage.object_storage import ObjectStorage  # noqa: PLC0415 - most stores do not need it

    return ObjectStorage()


def backend_of(path: StorePath) -> Backend[Any]:
    """Return what keeps the files of a path."""
    return _object_storage() if isinstance(path, ObjectPath) else FILE_SYSTEM


def staging(root: StorePath, needed_bytes: Callable[[], int] | None = None) -> AbstractContextManager[Path]:
    """As `Backend.staging`."""
    return backend_of(root).staging(root, needed_bytes)


def commit(staged: Path, place: P, root: P, *, read_back: bool = False) -> P | None:
    """As `Backend.commit`."""
    folder: P | None = backend_of(root).commit(staged, place, root, read_back=read_back)
    return folder


def replace_file(path: StorePath, data: bytes) -> None:
    """As `Backend.replace_file`."""
    backend_of(path).replace_file(path, data)


def mark(path: StorePath) -> None:
    """As `Backend.mark`."""
    backend_of(path).mark(path)


def remove_folders(root: StorePath, places: Iterable[StorePath]) -> None:
    """As `Backend.remove`."""
    backend_of(root).remove(root, places)


def set_aside(place: StorePath, quarantine: StorePath, root: StorePath) -> bool:
    """As `Backend.set_aside`."""
    return backend_of(root).set_aside(place, quarantine, root)


def find_group(place: P) -> P:
    """As `Backend.find_group`."""
    folder: P = backend_of(place).find_group(place)
    return folder


def has_group(place: StorePath) -> bool:
    """As `Backend.has_group`."""
    return backend_of(place).has_group(place)


def names(folder: StorePath) -> list[str]:
    """As `Backend.names`."""
    return backend_of(folder).names(folder)


def exists(path: StorePath) -> bool:
    """As `Backend.exists`."""
    return backend_of(path).exists(path)


def folder_bytes(place: StorePath) -> int:
    """As `Backend.num_bytes`."""
    return backend_of(place).num_bytes(place)


def total_bytes(places: Sequence[StorePath]) -> int:
    """Return the sum of `folder_bytes`."""
    return sum(backend_of(places[0]).each(folder_bytes, places)) if places else 0


def default_threads(path: StorePath) -> int:
    """Return how many threads should read: one a core, or more where most of the time is waiting."""
    return max(len(os.sched_getaffinity(0)), backend_of(path).min_threads)


def read_bytes(path: StorePath, most: int | None = None) -> bytes:
    """As `Backend.read_bytes`."""
    return backend_of(path).read_bytes(path, most)


@contextmanager
def missing_is_torn(what: str) -> Iterator[None]:
    """Turn a missing file into a TornObjectError that names `what`."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TornObjectError(f"{what} lacks {error.filename}; use aerie validate --repair") from error


def read_document(path: StorePath) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        FileNotFoundError: there is none.
        CorruptObjectError: the file holds something else.
    """
    try:
        document = json.loads(read_bytes(path, MAX_DOCUMENT_BYTES))
    except (ValueError, RecursionError) as error:  # too deep a nesting
        raise CorruptObjectError(f"{path} is not JSON: {error}; use aerie validate --repair") from error
    if not isinstance(document, dict):
        raise CorruptObjectError(f"{path} holds {type(document).__name__}, not an object; use aerie validate --repair")
    return document
