"""Which samples a spec has and where they lie, as of one look at the store; no payload is read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.hashes import Hashes, HashIndex, Positions, hashes_of, is_new, order_of
from storage.layout import loose_hashes, object_path
from storage.objects import open_loose
from storage.pack_index import Pack
from storage.pack_listing import live_positions, open_packs
from storage.paths import StorePath
from storage.samples import StoredRows
from storage.specs import StateSpec

LOOSE = -1


@dataclass(frozen=True)
class Catalog:
    """One entry for each sample, in ascending order of its hash; 52 bytes each, and the packs' own indexes.

    Attributes:
        store: the store's folder.
        spec: the spec.
        packs: its packs.
        index: the samples' hashes.
        pack: int32[n], the number of the sample's pack in `packs`; `LOOSE` if it is a loose object.
        position: int64[n], its position in that pack.
    """

    store: StorePath
    spec: StateSpec
    packs: tuple[Pack, ...]
    index: HashIndex
    pack: npt.NDArray[np.int32]
    position: Positions

    def __len__(self) -> int:
        return len(self.index)

    def name(self, at: int) -> str:
        """Return the sample hash of entry `at`."""
        return str(self.index.hashes[at].tobytes().hex())

    def folder(self, at: int) -> StorePath:
        """Return the folder of the loose object, or of the pack, that holds the sample of entry `at`."""
        if self.pack[at] == LOOSE:
            return object_path(self.store, self.spec.digest(), self.name(at))
        return self.packs[int(self.pack[at])].folder

    def rows(self, at: int) -> StoredRows:
        """Return the rows of the sample of entry `at`.

        Raises:
            FileNotFoundError: it is a loose object that has gone, or lacks a file.
            CorruptObjectError: the metadata of a loose object is damaged.
        """
        if self.pack[at] == LOOSE:
            return open_loose(self.folder(at), self.spec)
        return self.packs[int(self.pack[at])].rows(int(self.position[at]))

    def packed_tokens(self) -> npt.NDArray[np.int64]:
        """Return the tokens of each sample: int64[n]; 0 for a loose one, which no index names."""
        return self._gather(np.zeros(len(self), np.int64), [pack.num_tokens for pack in self.packs])

    def packed_errors(self) -> npt.NDArray[np.float32]:
        """Return the `RoundingError` of each sample: float32[n, 2]; 0 for a loose one, and where the spec is exact."""
        known = [pack.rounding_error for pack in self.packs]
        return self._gather(np.zeros((len(self), 2), np.float32), known)

    def _gather(self, out: npt.NDArray[Any], columns: Sequence[npt.NDArray[Any] | None]) -> npt.NDArray[Any]:
        for number, column in enumerate(columns):
            if column is not None:
                here = self.pack == number
                out[here] = column[self.position[here]]
        return out


def read_catalog(store: StorePath, spec: StateSpec, known: Iterable[Pack] = ()) -> Catalog:
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
    return make_catalog(store, spec, packs, [live_positions(store, digest, pack) for pack in packs], loose)


def make_catalog(
    store: StorePath, spec: StateSpec, packs: Sequence[Pack], positions: Sequence[Positions], loose: Hashes
) -> Catalog:
    """Catalog some samples; of several copies of one the first counts, and packs come before loose objects.

    Args:
        store: the store's folder.
        spec: the spec.
        packs: packs of the spec.
        positions: for each pack, which of its samples.
        loose: loose objects: uint8[n, 32].
    """
    chosen = list(zip(packs, positions, strict=True))
    hashes = np.concatenate([*(pack.hashes[here] for pack, here in chosen), loose])
    numbers = [np.full(len(here), number, np.int32) for number, here in enumerate(positions)]
    pack = np.concatenate([*numbers, np.full(len(loose), LOOSE, np.int32)])
    position = np.concatenate([*positions, np.zeros(len(loose), np.int64)])
    order = order_of(hashes)
    ordered = hashes[order]
    is_first = is_new(ordered)
    if not is_first.all():
        order, ordered = order[is_first], ordered[is_first]
    return Catalog(store, spec, tuple(packs), HashIndex(ordered), pack[order], position[order])
