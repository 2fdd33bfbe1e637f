"""Damage to each file of a small store: is it detected, and does the next run make it good?"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from small_samples import (
    DIGEST,
    SHARD_BYTES,
    SPEC,
    count_copies,
    damage,
    find_all,
    make_sample,
    make_store,
    name_of,
    name_samples,
    pack_samples,
    write_samples,
)

from storage import Store, open_store
from storage.checks import check_store
from storage.digests import DIGEST_LENGTH
from storage.errors import StorageError
from storage.file_checks import check_header
from storage.pack_listing import live_positions, open_packs
from storage.packs import compact
from storage.repairs import repair
from storage.store import add_spec, init_store

WANTED = range(6)


@dataclass(frozen=True)
class Verdict:
    """What became of one damage.

    Attributes:
        part: the file, without digests.
        damage: `flipped at <bit>`, `cut`, `emptied` or `removed`.
        is_detected: a check found something, or refused to.
        is_repaired: after repair and a run the store is as it was.
    """

    part: str
    damage: str
    is_detected: bool
    is_repaired: bool


def prepare(store: Path) -> None:
    """Make a store with loose objects, a pack of two shards, one with a removal, and a tokens artifact."""
    make_store(store)
    pack_samples(store, (1, 2, 3))
    pack_samples(store, (4, 5))
    damage(min(open_packs(store, SPEC), key=len).folder / "hidden_states/c/0/0/0", 9)
    repair(store, check_store(store, DIGEST).findings)
    write_samples(store, WANTED)
    name_samples(store, WANTED)


def damage_each_file(template: Path, folder: Path, flips: int) -> Iterator[Verdict]:
    """Damage each file of copies of a prepared store in each way.

    Args:
        template: the prepared store.
        folder: where copies are made.
        flips: bits to flip in each file, one at a time: the first, the last, and others at random.
    """
    dice = np.random.default_rng(0)
    dead = _dead_bytes(template)
    files = sorted(path.relative_to(template) for path in template.rglob("*") if path.is_file())
    for file in files:
        for name, data in _damages((template / file).read_bytes(), dead.get(file, 0), flips, dice):
            store = Path(shutil.copytree(template, folder / "damaged"))
            if data is None:
                (store / file).unlink()
            else:
                (store / file).write_bytes(data)
            is_detected = _is_detected(store)
            yield Verdict(_part(file), name, is_detected, _is_repaired(store))
            shutil.rmtree(store)


def _dead_bytes(store: Path) -> dict[Path, int]:
    """Return for shards that begin with a removed sample how long that is: nobody reads or checks it any more."""
    dead = {}
    for pack in open_packs(store, SPEC):
        first_live = live_positions(store, DIGEST, pack)[0]
        shard = Path(str(pack.folder), "hidden_states/c/0/0/0").relative_to(store)
        dead[shard] = int(pack.encoded_bytes()[:first_live].sum())
    return dead


def _damages(data: bytes, first_byte: int, flips: int, dice: np.random.Generator) -> Iterator[tuple[str, bytes | None]]:
    num_bits = 8 * len(data)
    first = 8 * first_byte
    chosen = [first, num_bits - 1, *dice.integers(first, max(first + 1, num_bits), flips).tolist()]
    for position in chosen[: min(flips, num_bits)]:
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        yield f"flipped at {position}", bytes(flipped)
    if data:
        yield "cut", data[:-1]
        yield "emptied", b""
    yield "removed", None


def _is_detected(store: Path) -> bool:
    try:
        return bool(find_all(store))
    except StorageError:  # `aerie validate` says so and ends with 1
        return True


def _is_repaired(store: Path) -> bool:
    """Repair, and do what a run does: record the spec, make the tokens, compute what is missing, compact."""
    repair(store, check_header(store))
    repair(store, find_all(store))
    init_store(store)
    add_spec(store, SPEC)
    name_samples(store, WANTED)
    write_samples(store, WANTED)
    compact(store, DIGEST, shard_bytes=SHARD_BYTES)
    found = open_store(store, DIGEST)
    is_whole = set(found) == {name_of(number) for number in WANTED} and count_copies(store) == len(WANTED)
    return is_whole and not find_all(store) and all(_is_as_written(found, number) for number in WANTED)


def _is_as_written(found: Store, number: int) -> bool:
    sample, (input_ids, states) = found[name_of(number)], make_sample(number)
    return np.array_equal(sample.input_ids, input_ids) and sample.hidden_states().tobytes() == states.tobytes()


def _part(file: Path) -> str:
    """Write a path with `*` for digests."""
    return "/".join("*" if len(part) >= DIGEST_LENGTH else part for part in file.parts)
