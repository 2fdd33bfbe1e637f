"""What is killed: each kind of work on a small store that has all that the work touches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from small_samples import (
    DIGEST,
    SHARD_BYTES,
    SPEC,
    damage,
    find_all,
    make_store,
    name_of,
    name_samples,
    pack_samples,
    write_samples,
)

from storage.checks import check_store
from storage.collection import collect_garbage
from storage.file_checks import check_header
from storage.layout import object_path
from storage.pack_listing import open_packs
from storage.packs import compact
from storage.repairs import repair
from storage.tiers import PACKS_PER_TIER


@dataclass(frozen=True)
class Scenario:
    """One kind of work.

    Attributes:
        prepare: makes the store.
        work: is killed, and done again.
        always: samples that are sound in the store before, and at any time.
        after: samples that are in the store when the work is done, and no others.
        wanted: samples that the next run makes sure of, if they are more.
    """

    prepare: Callable[[Path], None]
    work: Callable[[Path], None]
    always: Sequence[int]
    after: Sequence[int]
    wanted: Sequence[int] = ()


def _prepare_write(store: Path) -> None:
    make_store(store)
    pack_samples(store, range(3))
    write_samples(store, range(3, 5))


def _write(store: Path) -> None:
    name_samples(store, range(10))
    write_samples(store, range(10))


def _prepare_compact(store: Path) -> None:
    make_store(store)
    pack_samples(store, range(3))
    write_samples(store, range(10))


def _compact(store: Path) -> None:
    compact(store, DIGEST, shard_bytes=SHARD_BYTES)


def _prepare_merge(store: Path) -> None:
    make_store(store)
    for first in range(0, 2 * PACKS_PER_TIER, 2):
        pack_samples(store, [first, first + 1])
    write_samples(store, range(16, 19))


def _prepare_collect(store: Path) -> None:
    make_store(store)
    pack_samples(store, range(5))
    pack_samples(store, range(5, 9))
    damage(open_packs(store, SPEC)[0].folder / "hidden_states/c/0/0/0", 9)
    repair(store, check_store(store, DIGEST).findings)
    write_samples(store, range(14))
    name_samples(store, range(0, 14, 2))


def _collect(store: Path) -> None:
    collect_garbage(store, is_dry=False, shard_bytes=SHARD_BYTES)


# The sample of the lowest hash lies first in its pack, where `damage` strikes.
REMOVED = min(range(4), key=name_of)


def _prepare_repair(store: Path) -> None:
    make_store(store)
    pack_samples(store, range(4))
    (first,) = open_packs(store, SPEC)
    pack_samples(store, range(4, 6))
    (second,) = (pack for pack in open_packs(store, SPEC) if pack.pack_id != first.pack_id)
    write_samples(store, range(6, 10))
    name_samples(store, range(10))
    damage(first.folder / "hidden_states/c/0/0/0", 9)
    damage(second.folder / "row_start/c/0", 3)
    damage(object_path(store, DIGEST, name_of(6)) / "hidden_states/c/0/0/0", 9)
    damage(object_path(store, DIGEST, name_of(7)) / "zarr.json", 9)
    damage(next((store / "tokens").glob("*/row/c/0")), 2)
    damage(store / "aerie.json", 3)


def _repair(store: Path) -> None:
    repair(store, check_header(store))
    repair(store, find_all(store))


EVEN = list(range(0, 14, 2))
SOUND = sorted(set(range(4)) - {REMOVED} | {8, 9})
SCENARIOS = {
    "write": Scenario(_prepare_write, _write, range(5), range(10)),
    "compact": Scenario(_prepare_compact, _compact, range(10), range(10)),
    "merge": Scenario(_prepare_merge, _compact, range(19), range(19)),
    "collect": Scenario(_prepare_collect, _collect, EVEN, EVEN),
    "repair": Scenario(_prepare_repair, _repair, SOUND, SOUND, range(10)),
}
