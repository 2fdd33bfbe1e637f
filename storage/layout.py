"""Where things lie in a store, and the header that says what it is (docs/format.md)."""

import os
from collections.abc import Iterator
from pathlib import Path

from storage.digests import canonical_json, is_digest
from storage.errors import CorruptObjectError, NotAStoreError, StoreNotFoundError, StoreVersionError
from storage.files import read_document

FORMAT = "aerie"
FORMAT_VERSION = 1
HEADER = "aerie.json"
PREFIX_LENGTH = 2
MEND = f" (a store whose {HEADER} is damaged is mended by aerie validate --repair)"


def header_bytes() -> bytes:
    """Return the header of a store of this version."""
    return canonical_json({"format": FORMAT, "format_version": FORMAT_VERSION})


def spec_path(store: Path, spec_digest: str) -> Path:
    """The StateSpec's file."""
    return store / "specs" / f"{spec_digest}.json"


def objects_folder(store: Path, spec_digest: str) -> Path:
    """The loose objects of one spec."""
    return store / "objects" / spec_digest


def object_path(store: Path, spec_digest: str, sample_hash: str) -> Path:
    """One loose object."""
    return objects_folder(store, spec_digest) / sample_hash[:PREFIX_LENGTH] / sample_hash


def packs_folder(store: Path, spec_digest: str) -> Path:
    """The packs of one spec."""
    return store / "packs" / spec_digest


def removals_folder(store: Path, spec_digest: str, pack_id: str) -> Path:
    """The removals of one pack: an empty file for each sample that no longer counts."""
    return store / "removed" / spec_digest / pack_id


def tokens_folder(root: Path, tokens_digest: str) -> Path:
    """One tokens artifact."""
    return root / "tokens" / tokens_digest


def quarantine_folder(store: Path, spec_digest: str) -> Path:
    """What repair set aside for one spec."""
    return store / "quarantine" / spec_digest


def entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """List a folder; one that is missing is empty."""
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


def loose_hashes(store: Path, spec_digest: str) -> Iterator[str]:
    """List the sample hashes of the loose objects of one spec."""
    for prefix in entries(objects_folder(store, spec_digest)):
        if len(prefix.name) == PREFIX_LENGTH and prefix.is_dir():
            yield from (name for name in _names(prefix.path) if is_digest(name) and name.startswith(prefix.name))


def check_version(store: Path) -> None:
    """Refuse whatever is not a store of this format version.

    Raises:
        StoreNotFoundError, NotAStoreError, StoreVersionError: as their names say.
    """
    if not store.is_dir():
        raise StoreNotFoundError(f"{store} is not a folder; give the path of a store")
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
