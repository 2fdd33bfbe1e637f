"""Which samples a spec has and where they lie, as of one look at the store; no payload is read."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage.hashes import Hashes, HashIndex, Positions, hashes_of, is_new, order_of
from storage.layout import loose_hashes
from storage.pack_index import Pack
from storage.pack_listing import live_positions, open_packs
from storage.samples import StoredRows
from storage.specs import StateSpec

LOOSE = -1


@dataclass(frozen=True)
class Catalog:
    """One entry for each sample, in ascending order of its hash; 56 bytes each, and the packs' own indexes.

    Attributes:
        packs: the packs of the spec.
        index: the samples' hashes.
        pack: int32[n], the number of the sample's pack in `packs`; `LOOSE` if it is a loose object.
        position: int64[n], its position in that pack.
    """

    packs: tuple[Pack, ...]
    index: HashIndex
    pack: npt.NDArray[np.int32]
    position: Positions

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, at: int) -> StoredRows:
        """Return the rows of the sample of entry `at`, which is in a pack."""
        return self.packs[int(self.pack[at])].rows(int(self.position[at]))

    def packed_tokens(self) -> npt.NDArray[np.int64]:
        """Return the tokens of each sample: int64[n]; 0 for a loose one, which no index names."""
        num_tokens = np.zeros(len(self), np.int64)
        for number, pack in enumerate(self.packs):
            here = self.pack == number
            num_tokens[here] = pack.num_tokens[self.position[here]]
        return num_tokens


def read_catalog(store: Path, spec: StateSpec, known: Iterable[Pack] = ()) -> Catalog:
    """Look at directory listings and the indexes of packs.

    Args:
        store: the store's folder.
        spec: the spec.
        known: packs opened before; a pack never changes, so they are not opened again.

    Raises:
        CorruptObjectError: a pack's index is damaged.
    """
    digest = spec.digest()
    # Loose first: a sample that moves into a pack meanwhile is then seen in one place at least.
    loose = hashes_of(loose_hashes(store, digest))
    packs = open_packs(store, spec, known)
    live = [live_positions(store, digest, pack) for pack in packs]
    # Packs first: of several copies of a sample, the first in this order counts.
    hashes = [pack.hashes[positions] for pack, positions in zip(packs, live, strict=True)]
    numbers = [np.full(len(positions), number, np.int32) for number, positions in enumerate(live)]
    return _merge(
        packs,
        np.concatenate([*hashes, loose]),
        np.concatenate([*numbers, np.full(len(loose), LOOSE, np.int32)]),
        np.concatenate([*live, np.zeros(len(loose), np.int64)]),
    )


def _merge(packs: tuple[Pack, ...], hashes: Hashes, pack: npt.NDArray[np.int32], position: Positions) -> Catalog:
    order = order_of(hashes)
    ordered = hashes[order]
    is_first = is_new(ordered)
    if not is_first.all():
        order, ordered = order[is_first], ordered[is_first]
    return Catalog(packs, HashIndex(ordered), pack[order], position[order])
