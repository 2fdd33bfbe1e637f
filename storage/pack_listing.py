"""Which packs a spec has, and which of their samples count."""

from collections.abc import Iterable

import numpy as np

from storage.digests import is_digest
from storage.errors import TornObjectError
from storage.files import backend_of, has_group, missing_is_torn, names
from storage.hashes import HashIndex, Positions, hashes_of
from storage.layout import packs_folder, removals_folder
from storage.pack_index import Pack
from storage.paths import StorePath
from storage.specs import StateSpec


def pack_ids(store: StorePath, spec_digest: str) -> list[str]:
    """List the packs of one spec."""
    return backend_of(store).group_names(packs_folder(store, spec_digest))


def open_pack(store: StorePath, spec: StateSpec, pack_id: str) -> Pack:
    """Open a committed pack.

    Raises:
        CorruptObjectError: its index is damaged.
    """
    with missing_is_torn(f"pack {pack_id}"):
        return Pack(packs_folder(store, spec.digest()) / pack_id, spec, pack_id)


def open_packs(store: StorePath, spec: StateSpec, known: Iterable[Pack] = ()) -> tuple[Pack, ...]:
    """Open the packs of one spec; those that are `known` are not opened again.

    Raises:
        CorruptObjectError: the index of one is damaged.
    """
    packs = {pack.pack_id: pack for pack in known}
    while True:
        found = pack_ids(store, spec.digest())
        new = [pack_id for pack_id in found if pack_id not in packs]
        opened = backend_of(store).each(lambda pack_id: open_unless_gone(store, spec, pack_id), new)
        packs |= {pack.pack_id: pack for pack in opened if pack is not None}
        # A pack that goes while we look has gone into another, which a listing may have missed.
        if packs.keys() >= set(found) and pack_ids(store, spec.digest()) == found:
            return tuple(packs[pack_id] for pack_id in found)


def open_unless_gone(store: StorePath, spec: StateSpec, pack_id: str) -> Pack | None:
    """Open a committed pack; None if it is not there.

    Raises:
        CorruptObjectError: its index is damaged.
    """
    try:
        return open_pack(store, spec, pack_id)
    except TornObjectError:
        if has_group(packs_folder(store, spec.digest()) / pack_id):
            raise
        return None


def live_positions(store: StorePath, spec_digest: str, pack: Pack) -> Positions:
    """Return the positions of those samples of a pack that are not removed from it, ascending."""
    removed = removed_hashes(store, spec_digest, pack.pack_id)
    positions = np.arange(len(pack))
    if not removed:
        return positions
    gone = HashIndex(pack.hashes).find(hashes_of(removed))
    return np.delete(positions, gone[gone >= 0])


def removed_hashes(store: StorePath, spec_digest: str, pack_id: str) -> set[str]:
    """List the samples of a pack that repair has removed from it."""
    return {name for name in names(removals_folder(store, spec_digest, pack_id)) if is_digest(name)}
