"""Compaction: loose objects become packs, and many small packs fewer; nothing is decoded or encoded again."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from storage.catalog import Catalog, make_catalog
from storage.codecs import TOKENS_PER_CHUNK
from storage.copies import drop_copies, remove_pack
from storage.files import backend_of, folder_bytes, mark, remove_folders, total_bytes
from storage.hashes import Hashes, HashIndex, Positions, hashes_of, names_of
from storage.layout import check_version, loose_hashes, object_path, removals_folder
from storage.pack_index import Pack
from storage.pack_listing import live_positions, open_packs, removed_hashes
from storage.packing import SHARDS_PER_PACK, NewPack, SourceGoneError, held_by, write_pack
from storage.paths import StorePath
from storage.specs import StateSpec
from storage.store import read_spec
from storage.tiers import choose_crowd

SHARD_BYTES = 1 << 30

OnProgress = Callable[[int, int], None]
Choose = Callable[[Hashes], npt.NDArray[np.bool_]]


@dataclass
class PackInfo:
    """What `compact` did.

    Attributes:
        pack_ids: packs written.
        samples: samples that went from loose objects into packs.
        bytes: encoded bytes copied.
        seconds: time taken.
        skipped: sample hashes of damaged copies, left where they are; `checks.check_store` says what is wrong.
        merged: packs that are now parts of others.
    """

    pack_ids: list[str] = field(default_factory=list)
    samples: int = 0
    bytes: int = 0
    seconds: float = 0.0
    skipped: list[str] = field(default_factory=list)
    merged: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PackPlan:
    """What `compact` would do at first; packs that it makes may then be merged, too.

    Attributes:
        samples: loose objects that would go into packs.
        bytes: their files.
        merged: packs that would become parts of others.
        merged_bytes: their files.
    """

    samples: int
    bytes: int
    merged: list[str]
    merged_bytes: int


def plan_compaction(path: StorePath, spec_digest: str, *, shard_bytes: int = SHARD_BYTES) -> PackPlan:
    """Say what `compact` would do, and do nothing.

    Args:
        path: the store's folder.
        spec_digest: the spec.
        shard_bytes: as for `compact`.

    Raises:
        StorageError: there is no such store or spec, or the index of a pack is damaged.
    """
    check_version(path)
    return Compaction(path, read_spec(path, spec_digest), shard_bytes).plan()


def compact(
    path: StorePath,
    spec_digest: str,
    *,
    only: Collection[str] | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_progress: OnProgress | None = None,
    on_merge: OnProgress | None = None,
) -> PackInfo | None:
    """Copy the loose objects of a spec into packs, and crowds of small packs into larger ones.

    Each new pack is read back before what it is made of goes. May run beside writers, readers and other compactions; a
    sample is found in one place at least at any time.

    Args:
        path: the store's folder.
        spec_digest: the spec.
        only: pack these loose objects alone and merge nothing: for one of several processes, each with its own.
        shard_bytes: raw bytes of a shard, rounded down to whole inner chunks.
        on_progress: called with the number of loose samples done and in all.
        on_merge: the same for the samples of packs that are merged.

    Returns:
        None if there was nothing to do.

    Raises:
        StoreFullError, StoreReadOnlyError: the store cannot be written; no source has been removed without its pack.
        CorruptObjectError: the disk gave back other bytes than were written, or the index of an older pack is damaged.
    """
    check_version(path)
    compaction = Compaction(path, read_spec(path, spec_digest), shard_bytes)
    started = time.monotonic()
    had_loose = compaction.pack_loose(on_progress, only)
    if only is None:
        compaction.merge_crowds(on_merge)
    compaction.info.seconds = time.monotonic() - started
    return compaction.info if had_loose or compaction.info.merged else None


class Compaction:
    """Packing the samples of one spec.

    Args:
        store: the store's folder.
        spec: the spec.
        shard_bytes: raw bytes of a shard.

    Attributes:
        info: what was done.
    """

    def __init__(self, store: StorePath, spec: StateSpec, shard_bytes: int = SHARD_BYTES) -> None:
        self._store = store
        self._spec = spec
        self._digest = spec.digest()
        self._shard_rows = max(1, shard_bytes // spec.bytes_per_token // TOKENS_PER_CHUNK) * TOKENS_PER_CHUNK
        self.info = PackInfo()

    def plan(self) -> PackPlan:
        """Say what there is to do, and do nothing."""
        loose = [object_path(self._store, self._digest, name) for name in self._loose(None)]
        crowd = choose_crowd(open_packs(self._store, self._spec), SHARDS_PER_PACK * self._shard_rows)
        folders = [pack.folder for pack in crowd]
        return PackPlan(len(loose), total_bytes(loose), [pack.pack_id for pack in crowd], total_bytes(folders))

    def pack_loose(self, on_progress: OnProgress | None = None, only: Collection[str] | None = None) -> bool:
        """Copy the loose objects, or some of them, into packs; False if there was none."""
        is_needed = any(True for _ in self._loose(only))
        progress: _Progress | None = None
        while True:
            drop_copies(self._store, self._spec)
            names = sorted(set(self._loose(only)) - set(self.info.skipped))
            progress = progress or _Progress(len(names), on_progress)
            try:
                self._pack(hashes_of(names), progress)
            except SourceGoneError:
                continue
            return is_needed

    def _loose(self, only: Collection[str] | None) -> Iterator[str]:
        chosen = None if only is None else frozenset(only)
        return (name for name in loose_hashes(self._store, self._digest) if chosen is None or name in chosen)

    def _pack(self, loose: Hashes, progress: "_Progress") -> None:
        catalog = make_catalog(self._store, self._spec, (), (), loose)
        before = progress.total - len(loose)
        for new in self._write_packs(catalog, lambda at: progress.reach(before + at + 1)):
            self.info.samples += len(new.held)
            folders = [object_path(self._store, self._digest, name) for name in names_of(new.held)]
            remove_folders(self._store, folders)

    def merge_crowds(self, on_progress: OnProgress | None = None) -> None:
        """Merge packs as long as there are too many of a size, and room for their copy."""
        stuck: set[str] = set()
        while True:
            packs = open_packs(self._store, self._spec)
            crowd = choose_crowd((p for p in packs if p.pack_id not in stuck), SHARDS_PER_PACK * self._shard_rows)
            if not crowd or sum(folder_bytes(pack.folder) for pack in crowd) > backend_of(self._store).staging_bytes(
                self._store
            ):
                return
            stuck |= {pack.pack_id for pack in crowd} - set(self.merge(crowd, on_progress=on_progress))

    def merge(
        self, packs: Sequence[Pack], is_dropped: Choose | None = None, on_progress: OnProgress | None = None
    ) -> list[str]:
        """Copy what counts of some packs into new ones; return which of them went.

        A pack with a damaged sample stays, as do all when another process has merged one of them meanwhile.

        Args:
            packs: of the spec.
            is_dropped: says of each of some hashes whether it is left behind; asked again before the old packs go.
            on_progress: called with the number of samples done and in all.
        """
        kept = [self._positions(pack, is_dropped) for pack in packs]
        catalog = make_catalog(self._store, self._spec, packs, kept, hashes_of([]))
        progress = _Progress(len(catalog), on_progress)
        try:
            made = list(self._write_packs(catalog, lambda at: progress.reach(at + 1)))
        except SourceGoneError:
            return []
        held = np.concatenate([hashes_of([]), *(new.held for new in made)])
        gone = [pack for pack in packs if held_by(held, pack.hashes[self._positions(pack, is_dropped)])]
        for pack in gone:
            self._move_removals(pack, made)
            remove_pack(self._store, self._digest, pack)
        self.info.merged += [pack.pack_id for pack in gone]
        return [pack.pack_id for pack in gone]

    def _write_packs(self, catalog: Catalog, on_copy: Callable[[int], None]) -> Iterator[NewPack]:
        first = 0
        while first < len(catalog):
            new = write_pack(catalog, first, self._shard_rows, on_copy)
            self.info.pack_ids += [new.pack_id] if new.pack_id else []
            self.info.bytes += new.num_bytes
            self.info.skipped += [catalog.name(int(at)) for at in new.damaged]
            yield new
            first = new.stop

    def _positions(self, pack: Pack, is_dropped: Choose | None) -> Positions:
        live = live_positions(self._store, self._digest, pack)
        return live if is_dropped is None else live[~is_dropped(pack.hashes[live])]

    def _move_removals(self, pack: Pack, made: Sequence[NewPack]) -> None:
        """Remove from the new packs what repair has removed from an old one while it was copied."""
        for name in removed_hashes(self._store, self._digest, pack.pack_id):
            for new in made:
                if new.pack_id is not None and HashIndex(new.held).find_one(name) >= 0:
                    mark(removals_folder(self._store, self._digest, new.pack_id) / name)


class _Progress:
    """Counts up only, whatever has to be done again."""

    def __init__(self, total: int, tell: OnProgress | None) -> None:
        self.total = total
        self._tell = tell
        self._done = 0

    def reach(self, done: int) -> None:
        """Say that so many are done."""
        while self._done < min(done, self.total):
            self._done += 1
            if self._tell is not None:
                self._tell(self._done, self.total)
