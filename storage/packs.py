"""Compaction: many loose objects become one pack, by copying encoded chunks; nothing is decoded or encoded again."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from storage.codecs import TOKENS_PER_CHUNK
from storage.errors import CorruptObjectError
from storage.files import commit, missing_is_torn, remove_folders, staging
from storage.layout import check_version, loose_hashes, object_path, packs_folder, removals_folder
from storage.objects import open_loose
from storage.pack_index import Pack
from storage.pack_listing import open_pack, pack_ids, removed_hashes
from storage.pack_writer import PackWriter
from storage.specs import StateSpec
from storage.store import read_spec
from storage.verification import verify_chunks, verify_ids

SHARD_BYTES = 1 << 30
# Bounds a pack, and so the room that compaction needs: the loose sources of a pack go once it is verified.
SHARDS_PER_PACK = 32


@dataclass
class PackInfo:
    """What `compact` did.

    Attributes:
        pack_ids: packs written.
        samples: samples in them.
        bytes: encoded bytes copied.
        seconds: time taken.
        skipped: sample hashes of damaged loose objects, left where they are; `checks.check_store` says what is wrong.
    """

    pack_ids: list[str] = field(default_factory=list)
    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    skipped: list[str] = field(default_factory=list)


def compact(
    path: Path,
    spec_digest: str,
    *,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Callable[[int, int], None] | None = None,
) -> PackInfo | None:
    """Copy the loose objects of a spec into packs, verify the packs, then remove the loose ones.

    May run beside writers, readers and other compactions; a sample is then found in one place at least.

    Args:
        path: the store's folder.
        spec_digest: the spec.
        shard_bytes: raw bytes of a shard, rounded down to whole inner chunks.
        on_progress: called with the number of samples done and in all.

    Returns:
        None if there was nothing to do.

    Raises:
        StoreFullError, StoreReadOnlyError: the store cannot be written; no source has been removed without its pack.
        CorruptObjectError: the disk gave back other bytes than were written, or the index of an older pack is damaged.
    """
    check_version(path)
    spec = read_spec(path, spec_digest)
    started = time.monotonic()
    names = sorted(loose_hashes(path, spec_digest))
    fresh = _drop_packed(path, spec, names)
    info = PackInfo()
    shard_rows = max(1, shard_bytes // spec.bytes_per_token // TOKENS_PER_CHUNK) * TOKENS_PER_CHUNK
    queue = _reported(fresh, on_progress)
    for first in queue:
        _write_pack(path, spec, chain([first], queue), shard_rows, info)
    info.seconds = time.monotonic() - started
    return info if names else None


def _reported(names: list[str], on_progress: Callable[[int, int], None] | None) -> Iterator[str]:
    for done, name in enumerate(names, start=1):
        yield name
        if on_progress is not None:
            on_progress(done, len(names))


def _drop_packed(store: Path, spec: StateSpec, names: list[str]) -> list[str]:
    """Remove the loose objects that a pack holds already (a compaction was killed, or raced); return the others."""
    loose = set(names)
    for pack_id in pack_ids(store, spec.digest()):
        pack = open_pack(store, spec, pack_id)
        loose -= _drop_sources(store, spec, pack, loose)
    return [name for name in names if name in loose]


def _drop_sources(store: Path, spec: StateSpec, pack: Pack, names: set[str], *, is_verified: bool = False) -> set[str]:
    """Remove those of the loose objects `names` of which the committed pack has a live, verified copy; return them."""
    live = names - removed_hashes(store, spec.digest(), pack.pack_id)
    held = {name for i, name in enumerate(pack.sample_hashes) if name in live and (is_verified or _is_sound(pack, i))}
    remove_folders(store, [object_path(store, spec.digest(), name) for name in sorted(held)])
    return held


def _is_sound(pack: Pack, position: int) -> bool:
    try:
        pack.verify(position)
    except (CorruptObjectError, FileNotFoundError):  # check_store names it; here its loose copy is simply kept
        return False
    return True


def _write_pack(store: Path, spec: StateSpec, names: Iterator[str], shard_rows: int, info: PackInfo) -> None:
    with staging(store) as staged, PackWriter(staged, spec, shard_rows) as writer:
        for name in names:
            if not _copy(store, spec, name, writer):
                info.skipped.append(name)
            if writer.num_rows >= SHARDS_PER_PACK * shard_rows:
                break
        if not writer.num_rows:
            return
        pack_id = writer.close()
        _read_back(staged, spec, pack_id)
        final = packs_folder(store, spec.digest()) / pack_id
        if not final.exists():  # removals that a repair killed half-way left behind, of an earlier pack of this name
            remove_folders(store, [removals_folder(store, spec.digest(), pack_id)])
        # If another process was faster, the pack in place is not the one just read back.
        is_verified = commit(staged, final)
    _drop_sources(store, spec, open_pack(store, spec, pack_id), set(writer.sample_hashes), is_verified=is_verified)
    info.pack_ids.append(pack_id)
    info.samples += len(writer.sample_hashes)
    info.bytes += writer.num_bytes


def _copy(store: Path, spec: StateSpec, name: str, writer: PackWriter) -> bool:
    """Add a loose object to a pack; False if it is damaged."""
    folder = object_path(store, spec.digest(), name)
    try:
        rows = open_loose(folder, spec)
        verify_ids(rows, name)
        verify_chunks(rows)
        chunks = rows.encoded()
        first = next(chunks)  # holds the file open, whatever becomes of the object
        input_ids = rows.input_ids()
    except (CorruptObjectError, FileNotFoundError):
        return not folder.exists()  # gone: another compaction was faster
    writer.add(name, input_ids, chain([first], chunks))
    return True


def _read_back(folder: Path, spec: StateSpec, pack_id: str) -> None:
    with missing_is_torn(f"pack {pack_id} just written"):
        pack = Pack(folder, spec, pack_id)
        for position in range(len(pack)):
            pack.verify(position)
