"""What a store holds that nobody needs, by kind; nothing is changed here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from storage.errors import TornObjectError
from storage.file_checks import digests_of_states
from storage.files import backend_of, exists, folder_bytes, has_group, missing_is_torn, names, total_bytes
from storage.hashes import Hashes, HashIndex, hashes_of, is_new, names_of, order_of
from storage.layout import check_version, loose_hashes, object_path
from storage.leftovers import foreign_staging, stale_staging
from storage.pack_index import Pack
from storage.pack_listing import live_positions, open_packs
from storage.paths import StorePath
from storage.references import TOKENS, References, lost_tokens
from storage.specs import StateSpec
from storage.store import read_spec, spec_digests

Kind = Literal["unreferenced", "removed", "copies", "unrecorded", "quarantine", "staging"]


@dataclass
class Garbage:
    """What can be freed.

    Attributes:
        counts: by kind: `unreferenced` samples are those that no tokens artifact names; `removed` were removed from
            packs by repair; `copies` are those beside the one that is kept; `unrecorded` counts folders of specs whose
            file is not there; `quarantine` what repair set aside; `staging` what dead processes left.
        bytes: their bytes, by kind.
        folders: what can go as it is.
        loose: for each spec digest, the loose objects that nobody names: uint8[n, 32].
        rewrites: for each spec digest, groups of packs that are written anew, each as one, without what they lose.
        stayed: packs of them that stayed, since a sample is damaged or another process was at work there.
        copied_bytes: bytes to copy for that; also the room that it takes meanwhile, at most.
        foreign_bytes: staging of other hosts that is not old enough to be among the above.
        is_unsure: a tokens artifact was set aside and not made anew, so that no sample counts as unreferenced.
    """

    counts: Counter[Kind] = field(default_factory=Counter)
    bytes: Counter[Kind] = field(default_factory=Counter)
    folders: list[StorePath] = field(default_factory=list)
    loose: dict[str, Hashes] = field(default_factory=dict)
    rewrites: dict[str, list[list[Pack]]] = field(default_factory=dict)
    stayed: list[str] = field(default_factory=list)
    copied_bytes: int = 0
    foreign_bytes: int = 0
    is_unsure: bool = False

    def add(self, kind: Kind, count: int, num_bytes: int) -> None:
        """Count some of a kind."""
        if count:
            self.counts[kind] += count
            self.bytes[kind] += num_bytes

    def add_folders(self, kind: Kind, folders: Sequence[StorePath]) -> None:
        """Count folders, or files, that can go as they are."""
        self.add(kind, len(folders), total_bytes(folders))
        self.folders += folders


def find_garbage(store: StorePath, references: References, older_than_seconds: float | None = None) -> Garbage:
    """Look for what nobody needs.

    Args:
        store: the store's folder.
        references: which samples are named by somebody.
        older_than_seconds: count also staging of other hosts in which nothing has changed for so long.

    Raises:
        CorruptObjectError: a spec, a pack's index or a tokens artifact is damaged.
    """
    check_version(store)
    garbage = Garbage(is_unsure=bool(lost_tokens(store)))
    stale = stale_staging(store, older_than_seconds)
    garbage.add_folders("staging", [*stale, *backend_of(store).leftovers(store)])
    garbage.foreign_bytes = sum(folder_bytes(folder) for folder in foreign_staging(store) if folder not in stale)
    garbage.add_folders("quarantine", _set_aside(store))
    recorded = spec_digests(store)
    for digest in sorted(digests_of_states(store) - set(recorded)):
        kinds = ("objects", "packs", "removed")
        garbage.add_folders("unrecorded", [store / kind / digest for kind in kinds if exists(store / kind / digest)])
    for digest in recorded:
        _find_packed(store, read_spec(store, digest), references, garbage)
    return garbage


def _set_aside(store: StorePath) -> list[StorePath]:
    """List what is in the quarantine, but for tokens artifacts that have not been made anew: they name samples."""
    lost = lost_tokens(store)
    quarantine = store / "quarantine"
    return [
        quarantine / kind / name
        for kind in sorted(names(quarantine))
        for name in sorted(names(quarantine / kind))
        if not (kind == TOKENS and name.startswith(tuple(lost)))
    ]


def _find_loose(store: StorePath, digest: str, references: References, garbage: Garbage) -> Hashes:
    """Find loose objects that nobody names; return the others."""
    loose = hashes_of(sorted(loose_hashes(store, digest)))
    is_lacking = references.lack(loose)
    garbage.loose[digest] = loose[is_lacking]
    folders = [object_path(store, digest, name) for name in names_of(garbage.loose[digest])]
    garbage.add("unreferenced", len(folders), total_bytes(folders))
    return loose[~is_lacking]


def _find_packed(store: StorePath, spec: StateSpec, references: References, garbage: Garbage) -> None:
    digest = spec.digest()
    loose = _find_loose(store, digest, references, garbage)
    packs, sizes = _measure_packs(store, spec)
    live = [live_positions(store, digest, pack) for pack in packs]
    packed = _Packed([pack.hashes[here] for pack, here in zip(packs, live, strict=True)])
    copies = [object_path(store, digest, name) for name in names_of(loose[packed.hold(loose)])]
    garbage.add("copies", len(copies), total_bytes(copies))
    dirty, kept_bytes = set(), []
    for number, (pack, here) in enumerate(zip(packs, live, strict=True)):
        num_bytes, is_lacking = sizes[number], references.lack(pack.hashes[here])
        is_copy = packed.is_copy(number) & ~is_lacking
        garbage.add("removed", len(pack) - len(here), int(num_bytes.sum() - num_bytes[here].sum()))
        garbage.add("unreferenced", int(is_lacking.sum()), int(num_bytes[here[is_lacking]].sum()))
        garbage.add("copies", int(is_copy.sum()), int(num_bytes[here[is_copy]].sum()))
        kept_bytes.append(int(num_bytes[here[~is_lacking & ~is_copy]].sum()))
        if len(here) < len(pack) or is_lacking.any() or is_copy.any():
            dirty.add(number)
    groups = [group for group in packed.groups() if dirty & set(group)]
    garbage.copied_bytes += sum(kept_bytes[number] for group in groups for number in group)
    garbage.rewrites[digest] = [[packs[number] for number in group] for group in groups]


def _measure_packs(store: StorePath, spec: StateSpec) -> tuple[tuple[Pack, ...], list[npt.NDArray[np.int64]]]:
    """Open the packs, and give the encoded bytes of the samples of each."""
    while True:
        packs = open_packs(store, spec)
        try:
            with missing_is_torn(f"a pack of spec {spec.digest()}"):
                return packs, [pack.encoded_bytes() for pack in packs]
        except TornObjectError:
            if all(has_group(pack.folder) for pack in packs):  # else one has gone into another
                raise


class _Packed:
    """The samples of all packs of a spec, and which packs have some in common.

    Args:
        hashes: of each pack, uint8[n, 32].
    """

    def __init__(self, hashes: Sequence[Hashes]) -> None:
        joined = np.concatenate([hashes_of([]), *hashes])
        owner = np.repeat(np.arange(len(hashes)), [len(part) for part in hashes])
        order = order_of(joined)
        is_first = is_new(joined[order])
        self._index = HashIndex(joined[order][is_first])
        self._starts = np.cumsum([0, *(len(part) for part in hashes)])
        self._is_copy = np.zeros(len(joined), bool)
        self._is_copy[order[~is_first]] = True
        firsts = owner[order[is_first]][np.cumsum(is_first) - 1]
        pairs = np.stack([firsts, owner[order]], axis=1)[~is_first]
        self._pairs = np.unique(pairs, axis=0).tolist()

    def hold(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Say of each of `hashes` whether a pack has it."""
        return self._index.find(hashes) >= 0

    def is_copy(self, number: int) -> npt.NDArray[np.bool_]:
        """Say of each sample of a pack whether an earlier pack has it."""
        return self._is_copy[self._starts[number] : self._starts[number + 1]]

    def groups(self) -> list[list[int]]:
        """Return the packs in groups: those with a sample in common are together."""
        group_of = {number: [number] for number in range(len(self._starts) - 1)}
        for a, b in self._pairs:
            if group_of[a] is not group_of[b]:
                group_of[a] += group_of[b]
                group_of |= dict.fromkeys(group_of[b], group_of[a])
        return list({id(group): group for group in group_of.values()}.values())
