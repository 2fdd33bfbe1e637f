"""Copies of samples that a process left behind when it was killed between a commit and the removal of its sources."""

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np

from storage.catalog import Catalog, make_catalog
from storage.files import remove_folders
from storage.hashes import Hashes, Positions, hashes_of, names_of
from storage.layout import digest_in, loose_hashes, object_path, removals_folder
from storage.pack_index import Pack
from storage.pack_listing import live_positions, open_packs
from storage.packing import is_sound
from storage.paths import StorePath
from storage.specs import StateSpec


def drop_copies(store: StorePath, spec: StateSpec) -> None:
    """Remove loose objects that a pack holds, and packs all of which packs of a higher generation hold.

    A copy goes only for one of a higher generation, in which its bytes are as written; among packs of one name for the
    first. Whatever several processes see and do at once, the first of those of the highest then stays.

    Raises:
        CorruptObjectError: the index of a pack is damaged.
    """
    digest = spec.digest()
    packs = open_packs(store, spec)
    live = {pack.pack_id: live_positions(store, digest, pack) for pack in packs}
    for generation in sorted({pack.generation for pack in packs})[:-1]:
        above = _catalog(store, spec, [pack for pack in packs if pack.generation > generation], live)
        for pack in packs:
            if pack.generation == generation and _holds_all(above, pack.hashes[live[pack.pack_id]]):
                remove_pack(store, digest, pack)
    for twins in _twins(packs):
        first = _catalog(store, spec, twins[:1], live)
        for pack in twins[1:]:
            if _holds_all(first, pack.hashes[live[pack.pack_id]]):
                remove_pack(store, digest, pack)
    loose = hashes_of(sorted(loose_hashes(store, digest)))
    if len(loose):
        held = _held(_catalog(store, spec, packs, live), loose)
        remove_folders(store, [object_path(store, digest, name) for name in names_of(held)])


def _twins(packs: Sequence[Pack]) -> list[list[Pack]]:
    """Return packs of the same name, which two processes made at the same time on object storage, in one order."""
    ordered = sorted(packs, key=lambda pack: pack.pack_id)
    groups = [list(group) for _, group in groupby(ordered, lambda pack: digest_in(pack.pack_id))]
    return [group for group in groups if len(group) > 1]


def remove_pack(store: StorePath, spec_digest: str, pack: Pack) -> None:
    """Remove a pack, and what repair has said of it."""
    remove_folders(store, [pack.folder])
    # In this order: removals without a pack are harmless, a pack without its removals is not.
    remove_folders(store, [removals_folder(store, spec_digest, pack.pack_id)])


def _catalog(store: StorePath, spec: StateSpec, packs: Sequence[Pack], live: Mapping[str, Positions]) -> Catalog:
    return make_catalog(store, spec, packs, [live[pack.pack_id] for pack in packs], hashes_of([]))


def _holds_all(catalog: Catalog, hashes: Hashes) -> bool:
    """Say whether the catalog holds all of `hashes`, of which there are some, as they were written."""
    is_named = len(hashes) > 0 and bool((catalog.index.find(hashes) >= 0).all())
    return is_named and len(_held(catalog, hashes)) == len(hashes)


def _held(catalog: Catalog, hashes: Hashes) -> Hashes:
    """Return those of `hashes` that a pack of the catalog holds as they were written."""
    found = catalog.index.find(hashes)
    return hashes[[i for i in np.flatnonzero(found >= 0).tolist() if _is_sound(catalog, int(found[i]))]]


def _is_sound(catalog: Catalog, at: int) -> bool:
    return is_sound(catalog.packs[int(catalog.pack[at])], int(catalog.position[at]))
