"""One new pack of samples that are stored already: copied encoded as they are, read back, committed."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from storage.catalog import LOOSE, Catalog
from storage.errors import CorruptObjectError
from storage.files import (
    backend_of,
    commit,
    find_group,
    folder_bytes,
    has_group,
    missing_is_torn,
    remove_folders,
    staging,
)
from storage.hashes import Hashes, HashIndex, Positions
from storage.layout import packs_folder, removals_folder
from storage.pack_index import Pack
from storage.pack_listing import live_positions, open_unless_gone
from storage.pack_writer import DamagedCopyError, PackWriter, Source
from storage.paths import StorePath
from storage.verification import verify_chunks, verify_ids

# Bounds a pack, and so the room that compaction needs: the sources of a pack go once it is verified.
SHARDS_PER_PACK = 32


class SourceGoneError(Exception):
    """A sample has left its place while it was to be copied: another process has packed it, or set it aside."""


class _DamagedInCopyError(Exception):
    """A sample turned out to be damaged when a part of it was in the new pack."""


@dataclass(frozen=True)
class NewPack:
    """A pack that was written, here or by another process that was faster.

    Attributes:
        pack_id: its name; None if every sample was damaged, so that there is no pack.
        held: uint8[n, 32], the samples that are in it, read back and sound.
        num_bytes: encoded bytes copied.
        stop: the first entry of the catalog that was not looked at.
        damaged: the entries that were skipped.
    """

    pack_id: str | None
    held: Hashes
    num_bytes: int
    stop: int
    damaged: Positions


def write_pack(catalog: Catalog, first: int, shard_rows: int, on_copy: Callable[[int], None]) -> NewPack:
    """Copy samples, from entry `first` of the catalog on, into one pack of at most about `SHARDS_PER_PACK` shards.

    Args:
        catalog: what to copy.
        first: entry to begin with.
        shard_rows: rows of a shard.
        on_copy: called with each entry that has been copied or skipped.

    Raises:
        SourceGoneError: the catalog is out of date; nothing was committed.
        StoreFullError, StoreReadOnlyError: the store cannot be written.
        CorruptObjectError: the disk gave back other bytes than were written.
    """
    try:
        return _write_pack(catalog, first, shard_rows, on_copy, check_first=False)
    except (_DamagedInCopyError, DamagedCopyError):
        # Where one is damaged, there may be many. Start anew but once: each is checked before it is copied, and what is
        # not sound then is the disk's doing.
        return _write_pack(catalog, first, shard_rows, on_copy, check_first=True)


def generation_of(catalog: Catalog) -> int:
    """Return the generation of a pack made of these samples."""
    return max((pack.generation + 1 for pack in catalog.packs), default=0)


def _write_pack(
    catalog: Catalog, first: int, shard_rows: int, on_copy: Callable[[int], None], *, check_first: bool
) -> NewPack:
    generation = generation_of(catalog)
    stop, damaged = first, []
    with (
        staging(catalog.store, lambda: needed_bytes(catalog, first, shard_rows)) as staged,
        PackWriter(staged, catalog.spec, shard_rows, generation) as writer,
    ):
        entries = range(first, len(catalog))
        opened = backend_of(catalog.store).each(lambda at: _open_source(catalog, at, check_first=check_first), entries)
        for source in opened:
            if source is None:
                damaged.append(stop)
            else:
                _add(writer, source, catalog.folder(stop))
            on_copy(stop)
            stop += 1
            if writer.num_rows >= SHARDS_PER_PACK * shard_rows:
                break
        if not writer.num_rows:
            return NewPack(None, writer.hashes, 0, stop, np.array(damaged, np.int64))
        pack_id = writer.close()
        if not all(has_group(pack.folder) for pack in catalog.packs):
            raise SourceGoneError
        name, is_ours = _commit(catalog, staged, pack_id)
        held = writer.hashes if is_ours else _sound_hashes(catalog, name)
    return NewPack(name, held, writer.num_bytes, stop, np.array(damaged, np.int64))


def _open_source(catalog: Catalog, at: int, *, check_first: bool) -> Source | None:
    """Open a sample, so that it can be copied whatever becomes of its place; None if it is damaged."""
    name, folder = catalog.name(at), catalog.folder(at)
    try:
        rows = catalog.rows(at)
        verify_ids(rows, name)
        if check_first:
            verify_chunks(rows)
        runs = rows.states.runs(rows.chunks)
        first = next(runs)  # holds the file open
        return Source(name, rows.input_ids(), rows.checksum, chain([first], runs), rows.error)
    except (CorruptObjectError, FileNotFoundError):  # check_store says what is wrong
        if not has_group(folder):
            raise SourceGoneError from None
        return None


def _add(writer: PackWriter, source: Source, folder: StorePath) -> None:
    try:
        writer.add(source)
    except FileNotFoundError as error:
        if not has_group(folder):
            raise SourceGoneError from error
        if not str(error.filename).startswith(str(folder)):  # a file of the new pack
            raise
        raise _DamagedInCopyError from error
    except CorruptObjectError as error:
        raise _DamagedInCopyError from error


def _commit(catalog: Catalog, staged: Path, pack_id: str) -> tuple[str, bool]:
    """Commit a pack; return its name in the store, and whether it was not there before."""
    digest = catalog.spec.digest()
    final = packs_folder(catalog.store, digest) / pack_id
    if not has_group(final):  # removals that a repair killed half-way left behind, of an earlier pack of this name
        remove_folders(catalog.store, [removals_folder(catalog.store, digest, pack_id)])
    folder = commit(staged, final, catalog.store, read_back=True)
    name = f"{pack_id}{str(folder or _find_pack(final)).removeprefix(str(final))}"
    return name, folder is not None


def _find_pack(place: StorePath) -> StorePath:
    try:
        return find_group(place)
    except FileNotFoundError as error:
        raise SourceGoneError from error


def _sound_hashes(catalog: Catalog, pack_id: str) -> Hashes:
    """Return the samples that a pack of another process holds, each checked: it is not the one just read back."""
    pack = open_unless_gone(catalog.store, catalog.spec, pack_id)
    if pack is None:
        raise SourceGoneError
    live = live_positions(catalog.store, catalog.spec.digest(), pack)
    return pack.hashes[[position for position in live.tolist() if is_sound(pack, position)]]


def is_sound(pack: Pack, position: int) -> bool:
    """Say whether the stored bytes of a sample of a pack are those that its index names."""
    try:
        with missing_is_torn(f"pack {pack.pack_id}"):
            pack.verify(position)
    except CorruptObjectError:  # check_store says what is wrong
        return False
    return True


def held_by(held: Hashes, hashes: Hashes) -> bool:
    """Say whether all of `hashes` are among the ascending `held`."""
    return bool((HashIndex(held).find(hashes) >= 0).all())


def needed_bytes(catalog: Catalog, first: int, shard_rows: int) -> int:
    """Return the room that the next pack takes at most."""
    largest = SHARDS_PER_PACK * shard_rows * catalog.spec.bytes_per_token
    loose = sum(folder_bytes(catalog.folder(int(at))) for at in np.flatnonzero(catalog.pack[first:] == LOOSE) + first)
    return min(largest, loose + sum(folder_bytes(pack.folder) for pack in catalog.packs))
