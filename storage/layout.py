"""Where things lie in a store, and the header that says what it is (docs/format.md)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from storage.digests import DIGEST_LENGTH, canonical_json
from storage.errors import CorruptObjectError, NotAStoreError, StoreNotFoundError, StoreVersionError
from storage.file_system import PREFIX_LENGTH
from storage.files import backend_of, read_document
from storage.paths import StorePath

P = TypeVar("P", bound=StorePath)

FORMAT = "aerie"
FORMAT_VERSION = 1
HEADER = "aerie.json"
MEND = f" (a store whose {HEADER} is damaged is mended by aerie validate --repair)"


def header_bytes() -> bytes:
    """Return the header of a store of this version."""
    return canonical_json({"format": FORMAT, "format_version": FORMAT_VERSION})


def _below(store: P, *names: str) -> P:
    path: Any = store
    for name in names:
        path = path / name
    return cast("P", path)


def spec_path(store: P, spec_digest: str) -> P:
    """The StateSpec's file."""
    return _below(store, "specs", f"{spec_digest}.json")


def objects_folder(store: P, spec_digest: str) -> P:
    """The loose objects of one spec."""
    return _below(store, "objects", spec_digest)


def object_path(store: P, spec_digest: str, sample_hash: str) -> P:
    """The place of one loose object."""
    return _below(objects_folder(store, spec_digest), sample_hash[:PREFIX_LENGTH], sample_hash)


def packs_folder(store: P, spec_digest: str) -> P:
    """The packs of one spec."""
    return _below(store, "packs", spec_digest)


def digest_in(group_name: str) -> str:
    """Return the digest with which the name of a group begins."""
    return group_name[:DIGEST_LENGTH]


def removals_folder(store: P, spec_digest: str, pack_id: str) -> P:
    """The removals of one pack: an empty file for each sample that no longer counts."""
    return _below(store, "removed", spec_digest, pack_id)


def tokens_folder(root: P, tokens_digest: str) -> P:
    """The place of one tokens artifact."""
    return _below(root, "tokens", tokens_digest)


def quarantine_folder(store: P, spec_digest: str) -> P:
    """What repair set aside for one spec."""
    return _below(store, "quarantine", spec_digest)


def loose_hashes(store: StorePath, spec_digest: str) -> Iterator[str]:
    """List the sample hashes of the loose objects of one spec."""
    return backend_of(store).loose_hashes(objects_folder(store, spec_digest))


def check_version(store: StorePath) -> None:
    """Refuse whatever is not a store of this format version.

    Raises:
        StoreNotFoundError, NotAStoreError, StoreVersionError: as their names say.
    """
    if not backend_of(store).is_folder(store):
        what = "is not a folder" if isinstance(store, Path) else "has no object below it"
        raise StoreNotFoundError(f"{store} {what}; give the path of a store")
    try:
        header = read_document(store / HEADER)
    except FileNotFoundError as error:
        raise NotAStoreError(
            f"{store} has no {HEADER}; give the path of a store, or of an empty folder to make one{MEND}"
        ) from error
    except CorruptObjectError as error:
        raise NotAStoreError(f"{store / HEADER} is not readable; give the path of a store{MEND}") from error
    if header.get("format") != FORMAT:
        raise NotAStoreError(
            f"{store / HEADER} says format {header.get('format')!r}, not {FORMAT!r}; give the path of a store{MEND}"
        )
    version = header.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise StoreVersionError(
            f"{store} has format version {version!r}, this aerie reads {FORMAT_VERSION}; "
            f"use the aerie that wrote it{MEND}"
        )
