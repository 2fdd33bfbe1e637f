"""Setting aside what a check has found, so that the next run makes it anew."""

from collections.abc import Iterable
from dataclasses import replace

from storage.errors import CorruptObjectError
from storage.file_checks import check_header
from storage.files import clear_errors, exists, has_group, mark, remove_folders, replace_file, set_aside
from storage.findings import Finding
from storage.layout import (
    HEADER,
    check_version,
    header_bytes,
    object_path,
    packs_folder,
    quarantine_folder,
    removals_folder,
    spec_path,
    tokens_folder,
)
from storage.pack_listing import open_pack, removed_hashes
from storage.paths import StorePath
from storage.store import read_spec


def repair(path: StorePath, findings: Iterable[Finding]) -> int:
    """Set aside what `findings` name; a repeat is harmless.

    A loose object moves into the quarantine. A packed sample is recorded as removed from its pack. A pack whose index
    is damaged or of which every sample is removed, a tokens artifact, the file of a spec: they move into the
    quarantine, and the next run makes them anew. A header is written anew.

    Returns:
        How many were set aside, or written anew.

    Raises:
        StoreReadOnlyError, StoreFullError: the store cannot be written.
    """
    distinct = {replace(finding, reason="", detail="") for finding in findings}
    with clear_errors(path):
        done = sum(_set_aside(path, finding) for finding in sorted(distinct, key=_rank))
        removed = {(f.digest, f.pack_id) for f in distinct if f.sample_hash and f.pack_id}
        for digest, pack_id in sorted(removed, key=str):
            _set_aside_if_empty(path, str(digest), str(pack_id))
    return done


def _rank(finding: Finding) -> tuple[bool, str]:
    return finding.where != "header", str(finding)  # without a header nothing else is looked at


def _set_aside(store: StorePath, finding: Finding) -> bool:
    digest, name, pack_id = str(finding.digest), finding.sample_hash, finding.pack_id
    if finding.where == "header":
        return _replace_header(store)
    check_version(store)
    if name is not None and pack_id is not None:
        return _remove_from_pack(store, digest, pack_id, name)
    places = {
        "tokens": tokens_folder(store, digest),
        "spec": spec_path(store, digest),
        "pack": packs_folder(store, digest) / str(pack_id),
        "loose": object_path(store, digest, str(name)),
    }
    quarantine = quarantine_folder(store, "tokens" if finding.where == "tokens" else digest)
    return set_aside(places[finding.where], quarantine, store)


def _replace_header(store: StorePath) -> bool:
    if not check_header(store):
        return False
    replace_file(store / HEADER, header_bytes())
    return True


def _remove_from_pack(store: StorePath, digest: str, pack_id: str, name: str) -> bool:
    removal = removals_folder(store, digest, pack_id) / name
    is_new = not exists(removal) and has_group(packs_folder(store, digest) / pack_id)
    if is_new:
        mark(removal)
    return is_new


def _set_aside_if_empty(store: StorePath, spec_digest: str, pack_id: str) -> None:
    """Free the name of a pack of which nothing is left: the same samples, made again, will want it."""
    try:
        pack = open_pack(store, read_spec(store, spec_digest), pack_id)
    except CorruptObjectError:  # a finding of its own, or already moved
        return
    if set(pack.sample_hashes) <= removed_hashes(store, spec_digest, pack_id):
        set_aside(pack.folder, quarantine_folder(store, spec_digest), store)
        # In this order: a kill between the two leaves removals without a pack, which compaction clears.
        remove_folders(store, [removals_folder(store, spec_digest, pack_id)])
