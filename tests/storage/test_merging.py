"""Many small packs become fewer: nothing is lost, whoever else is at work, and no byte is copied too often."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from storage import open_store, packing
from storage.checks import check_store
from storage.errors import StoreFullError
from storage.file_system import FileSystem
from storage.hashes import HashIndex, hashes_of
from storage.pack_listing import open_packs
from storage.packs import Compaction, compact
from storage.repairs import repair
from storage.tiers import PACKS_PER_TIER, choose_crowd


def assert_all_there(filled) -> None:
    store = open_store(filled.path)
    assert set(store) == set(filled.samples)
    for name, (input_ids, states) in filled.samples.items():
        assert np.array_equal(store[name].input_ids, input_ids)
        assert store[name].hidden_states().tobytes() == states.tobytes()
    assert not check_store(filled.path, filled.digest).findings


def encoded(filled) -> dict[str, list[bytes]]:
    found = {}
    for pack in open_packs(filled.path, filled.spec):
        found |= {pack.name(i): [bytes(c.data) for c in pack.rows(i).encoded()] for i in range(len(pack))}
    return found


def add_pack(filled, seed: int, lengths: tuple[int, ...] = (300, 60)) -> None:
    for num_tokens in lengths:
        filled.write(num_tokens, seed)
    Compaction(filled.path, filled.spec).pack_loose()


@pytest.fixture
def crowded(make_filled: Callable) -> Any:
    """A store with as many packs of one size as are merged."""
    filled = make_filled(())
    for seed in range(PACKS_PER_TIER):
        add_pack(filled, seed)
    return filled


def merge_all(filled) -> list[str]:
    return Compaction(filled.path, filled.spec).merge(open_packs(filled.path, filled.spec))


def test_a_crowd_becomes_one_pack_with_every_chunk_as_it_was(crowded) -> None:
    before = encoded(crowded)
    info = compact(crowded.path, crowded.digest)
    assert info is not None
    assert (len(info.merged), len(info.pack_ids), info.samples) == (PACKS_PER_TIER, 1, 0)
    assert info.bytes == sum(len(chunk) for chunks in before.values() for chunk in chunks)
    (pack,) = open_packs(crowded.path, crowded.spec)
    assert pack.generation == 1
    assert encoded(crowded) == before
    assert not list((crowded.path / "tmp").iterdir())
    assert_all_there(crowded)
    assert compact(crowded.path, crowded.digest) is None


def test_a_store_that_gets_a_pack_every_night_keeps_few_and_copies_each_byte_seldom(make_filled: Callable) -> None:
    filled = make_filled(())
    copied = 0
    for night in range(3 * PACKS_PER_TIER):
        filled.write(60, night)
        info = compact(filled.path, filled.digest)
        assert info is not None
        copied += info.bytes
        assert len(filled.packs()) < 2 * PACKS_PER_TIER
    assert copied <= 3 * sum(len(chunk) for chunks in encoded(filled).values() for chunk in chunks)
    assert_all_there(filled)


def sizes(packs_: list[SimpleNamespace]) -> list[int]:
    return [pack.num_rows // 256 for pack in packs_]


def make_packs(*chunks: int) -> list[Any]:
    return [SimpleNamespace(num_rows=256 * n, pack_id=f"{i:064}") for i, n in enumerate(chunks)]


def test_only_a_tier_of_too_many_is_merged_the_lowest_first() -> None:
    few, many, large = [1] * 7, [9, 10, 11, 12, 13, 14, 15, 8], [100] * 8
    assert not choose_crowd(make_packs(*few, *many[:7], *large[:7]), 256 << 20)
    assert sizes(choose_crowd(make_packs(*large, *few, *many), 256 << 20)) == sorted(many)


def test_a_merge_is_bounded_by_one_pack_and_packs_over_half_of_it_stay() -> None:
    crowd = make_packs(*[40] * 8, 33, *[51] * 20)
    assert sizes(choose_crowd(crowd, 100 * 256)) == [33, 40]
    assert not choose_crowd(make_packs(*[51] * 20), 100 * 256)


def simulate_nights(nights: int, chunks: int, max_chunks: int) -> tuple[int, float]:
    """Return the most packs at a time, and how often a byte was copied."""
    present, most, copied = make_packs(), 0, 0
    for night in range(nights):
        present += make_packs(chunks + night % 3)
        copied += present[-1].num_rows
        while crowd := choose_crowd(present, max_chunks * 256):
            present = [pack for pack in present if pack not in crowd]
            present += make_packs(sum(sizes(crowd)))
            copied += present[-1].num_rows
        most = max(most, len(present) - sum(pack.num_rows > max_chunks * 128 for pack in present))
    return most, copied / sum(pack.num_rows for pack in present)


@pytest.mark.parametrize("chunks", [1, 5, 30, 200])
def test_ten_years_of_nights_leave_few_packs_below_the_largest_size(chunks: int) -> None:
    most, times_copied = simulate_nights(3650, chunks, max_chunks=4096)
    assert most <= 5 * PACKS_PER_TIER
    assert times_copied < 7


def test_removed_samples_are_left_behind(crowded) -> None:
    (pack, *_) = crowded.packs()
    shard = pack / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(data)
    findings = check_store(crowded.path, crowded.digest).findings
    repair(crowded.path, findings)
    compact(crowded.path, crowded.digest)
    del crowded.samples[findings[0].sample_hash]
    assert len(crowded.packs()) == 1
    assert not list(crowded.path.glob("removed/*/*"))
    assert_all_there(crowded)


def test_a_pack_with_a_damaged_sample_stays_and_names_it(crowded) -> None:
    (pack, *_) = crowded.packs()
    shard = pack / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[-300] ^= 1  # in the last chunk of its last sample, when the others are in the new pack
    shard.write_bytes(data)
    info = compact(crowded.path, crowded.digest)
    assert info is not None
    findings = check_store(crowded.path, crowded.digest).findings
    assert [finding.sample_hash for finding in findings] == info.skipped
    assert pack in crowded.packs()
    assert len(crowded.packs()) == 2
    repair(crowded.path, findings)
    merge_all(crowded)
    del crowded.samples[info.skipped[0]]
    assert_all_there(crowded)


def any_of(names: list[str]) -> Callable:
    index = HashIndex(hashes_of(names))
    return lambda hashes: index.find(hashes) >= 0


def test_samples_to_drop_are_left_behind(crowded) -> None:
    dropped = sorted(crowded.samples)[::3]
    compaction = Compaction(crowded.path, crowded.spec)
    gone = compaction.merge(open_packs(crowded.path, crowded.spec), any_of(dropped))
    assert len(gone) == PACKS_PER_TIER
    for name in dropped:
        del crowded.samples[name]
    assert_all_there(crowded)


def test_a_sample_of_several_packs_is_kept_once(crowded) -> None:
    for seed in range(2):
        crowded.write(300, seed)
        crowded.write(60, seed)
        crowded.write(500, seed)
    shutil.move(crowded.path / "packs", crowded.path / "aside")
    compact(crowded.path, crowded.digest)
    shutil.copytree(crowded.path / "aside", crowded.path / "packs", dirs_exist_ok=True)
    assert_all_there(crowded)
    merge_all(crowded)
    (pack,) = open_packs(crowded.path, crowded.spec)
    assert len(pack) == len(crowded.samples)
    assert_all_there(crowded)


def test_sources_left_by_a_kill_after_the_commit_are_removed_by_the_next(crowded, tmp_path: Path) -> None:
    shutil.copytree(crowded.path / "packs", tmp_path / "sources")
    compact(crowded.path, crowded.digest)
    (merged,) = crowded.packs()
    shutil.copytree(tmp_path / "sources", crowded.path / "packs", dirs_exist_ok=True)
    assert_all_there(crowded)
    compact(crowded.path, crowded.digest)
    assert crowded.packs() == [merged]
    assert_all_there(crowded)


def test_sources_are_not_removed_for_a_pack_that_is_damaged(crowded, tmp_path: Path) -> None:
    shutil.copytree(crowded.path / "packs", tmp_path / "sources")
    compact(crowded.path, crowded.digest)
    shard = crowded.packs()[0] / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[5] ^= 1
    shard.write_bytes(data)
    shutil.copytree(tmp_path / "sources", crowded.path / "packs", dirs_exist_ok=True)
    compact(crowded.path, crowded.digest)
    findings = check_store(crowded.path, crowded.digest).findings
    assert len(findings) == 1
    repair(crowded.path, findings)
    assert_all_there(crowded)


def test_a_pack_never_goes_for_one_that_was_made_from_it_and_is_smaller(crowded, tmp_path: Path) -> None:
    """Killed after it wrote a pack without what nobody names: the larger one outlives the next compaction."""
    shutil.copytree(crowded.path / "packs", tmp_path / "sources")
    drop = any_of(sorted(crowded.samples)[:1])
    Compaction(crowded.path, crowded.spec).merge(open_packs(crowded.path, crowded.spec)[:1], drop)
    shutil.copytree(tmp_path / "sources", crowded.path / "packs", dirs_exist_ok=True)
    for _ in range(2):
        compact(crowded.path, crowded.digest)
        assert_all_there(crowded)


def test_too_little_room_is_no_reason_to_fail_a_run(crowded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileSystem, "staging_bytes", lambda *_: 10)
    assert compact(crowded.path, crowded.digest) is None
    assert len(crowded.packs()) == PACKS_PER_TIER


def test_a_disk_that_fills_up_while_merging_says_what_was_needed_and_loses_nothing(
    small_disk: Callable, make_filled: Callable
) -> None:
    filled = make_filled((), path=small_disk("size=8m") / "store", hidden_size=512)
    for seed in range(2):
        add_pack(filled, seed, (300, 200))
    filler = filled.path.parent / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(bytes(8 << 20))
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (300 << 10))
    with pytest.raises(StoreFullError, match=r"no space left at .*store \(up to \d{7} bytes were needed\)"):
        merge_all(filled)
    assert not list((filled.path / "tmp").iterdir())
    assert len(filled.packs()) == 2
    assert_all_there(filled)
    filler.unlink()
    assert len(merge_all(filled)) == 2
    assert_all_there(filled)


def test_a_reader_that_opened_the_old_packs_finds_its_samples_in_the_new_one(crowded) -> None:
    store = open_store(crowded.path)
    early = {name: store[name] for name in store}
    compact(crowded.path, crowded.digest)
    for name, sample in early.items():
        assert sample.hidden_states().tobytes() == crowded.samples[name][1].tobytes()
    assert store[min(early)].num_tokens == len(crowded.samples[min(early)][0])


def test_a_merge_gives_up_when_another_has_taken_its_sources(crowded, monkeypatch: pytest.MonkeyPatch) -> None:
    add, calls = packing.PackWriter.add, iter(range(1000))

    def merge_first_then_add(writer: Any, source: Any) -> None:
        if next(calls) == 5:
            merge_all(crowded)
        add(writer, source)

    ours = open_packs(crowded.path, crowded.spec)
    monkeypatch.setattr(packing.PackWriter, "add", merge_first_then_add)
    assert Compaction(crowded.path, crowded.spec).merge(ours) == []
    assert len(crowded.packs()) == 1
    assert_all_there(crowded)


def test_merges_compactions_writers_readers_and_checks_at_once_lose_nothing(crowded) -> None:
    has_ended = Event()
    known = dict(crowded.samples)

    def read_and_check() -> None:
        while not has_ended.is_set():
            store = open_store(crowded.path)
            for name, (_, states) in known.items():
                assert store[name].hidden_states().tobytes() == states.tobytes()
            assert not check_store(crowded.path, crowded.digest).findings

    def write(seeds: range) -> None:
        for seed in seeds:
            crowded.write(80, seed)
            if not seed % 4:
                compact(crowded.path, crowded.digest)

    with ThreadPoolExecutor(4) as pool:
        reader = pool.submit(read_and_check)
        workers = [pool.submit(write, range(1000, 1024)), pool.submit(write, range(2000, 2024))]
        workers.append(pool.submit(lambda: [merge_all(crowded) for _ in range(10)]))
        wait(workers)
        has_ended.set()
    for future in (*workers, reader):
        future.result()
    compact(crowded.path, crowded.digest)
    merge_all(crowded)
    assert not crowded.objects()
    assert_all_there(crowded)
