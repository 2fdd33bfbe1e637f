"""Compaction copies bytes, loses nothing, and gets along with everyone."""

import shutil
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from storage import StateSpec, open_store, packing
from storage.checks import check_store
from storage.errors import CorruptObjectError, StoreFullError
from storage.findings import Finding
from storage.objects import ObjectWriter, open_loose
from storage.pack_index import Pack
from storage.pack_listing import open_pack
from storage.packs import compact
from storage.read_back import ReadBack
from storage.repairs import repair


def encoded(rows) -> list[bytes]:
    return [chunk.data for chunk in rows.encoded()]


def assert_all_there(filled) -> None:
    store = open_store(filled.path)
    assert set(store) == set(filled.samples)
    for name, (input_ids, states) in filled.samples.items():
        assert np.array_equal(store[name].input_ids, input_ids)
        assert store[name].hidden_states().tobytes() == states.tobytes()
    assert not check_store(filled.path, filled.digest).findings


@pytest.mark.parametrize("shard_chunks", [1, 2, 3, 100])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_compaction_copies_every_chunk_as_it_is(make_filled: Callable, shard_chunks: int, dtype: str) -> None:
    filled = make_filled(storage_dtype=dtype)
    before = {folder.name: encoded(open_loose(folder, filled.spec)) for folder in filled.objects()}
    info = compact(filled.path, filled.digest, shard_bytes=shard_chunks * 256 * filled.spec.bytes_per_token)
    assert info is not None
    assert (info.samples, info.skipped) == (len(before), [])
    assert info.bytes == sum(len(chunk) for chunks in before.values() for chunk in chunks)
    assert not filled.objects()
    assert not list((filled.path / "tmp").iterdir())
    found = {}
    for folder in filled.packs():
        pack = open_pack(filled.path, filled.spec, folder.name)
        found |= {name: encoded(pack.rows(i)) for i, name in enumerate(pack.sample_hashes)}
    assert found == before
    assert_all_there(filled)


def test_a_sample_may_continue_in_the_next_shard(make_filled: Callable) -> None:
    filled = make_filled((2000,))
    compact(filled.path, filled.digest, shard_bytes=3 * 256 * filled.spec.bytes_per_token)
    shards = sorted(path.name for path in (filled.packs()[0] / "hidden_states/c").iterdir())
    assert shards == ["0", "1", "2"]
    assert_all_there(filled)


def test_nothing_to_do_is_said(filled) -> None:
    assert compact(filled.path, filled.digest) is not None
    assert compact(filled.path, filled.digest) is None


def test_of_several_processes_each_packs_its_own(filled) -> None:
    names = sorted(filled.samples)
    mine, theirs = names[::2], names[1::2]
    info = compact(filled.path, filled.digest, only=mine)
    assert info is not None
    assert info.samples == len(mine)
    assert sorted(folder.name for folder in filled.objects()) == theirs
    assert compact(filled.path, filled.digest, only=mine) is None
    assert compact(filled.path, filled.digest, only=[]) is None
    assert compact(filled.path, filled.digest, only=names) is not None
    assert (len(filled.packs()), filled.objects()) == (2, [])
    assert_all_there(filled)


def test_progress_counts_every_sample(filled) -> None:
    seen: list[tuple[int, int]] = []
    compact(filled.path, filled.digest, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(i + 1, len(filled.samples)) for i in range(len(filled.samples))]


def test_packs_are_bounded_so_that_compaction_needs_little_room(filled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SHARDS_PER_PACK", 2)
    info = compact(filled.path, filled.digest, shard_bytes=256 * filled.spec.bytes_per_token)
    assert info is not None
    assert len(info.pack_ids) == len(filled.packs()) > 1
    assert_all_there(filled)


def test_new_objects_go_into_a_new_pack(filled) -> None:
    compact(filled.path, filled.digest)
    old = {file: file.read_bytes() for file in filled.packs()[0].rglob("*") if file.is_file()}
    filled.write(400, seed=50)
    compact(filled.path, filled.digest)
    assert len(filled.packs()) == 2
    assert {file: file.read_bytes() for file in old} == old, "a pack never changes"
    assert_all_there(filled)


def test_a_sample_both_loose_and_packed_loses_its_loose_copy(filled) -> None:
    compact(filled.path, filled.digest)
    for seed, num_tokens in enumerate((1, 255)):
        assert not filled.write(num_tokens, seed).existed
    assert len(filled.objects()) == 2
    compact(filled.path, filled.digest)
    assert not filled.objects()
    assert len(filled.packs()) == 1
    assert_all_there(filled)


def test_a_loose_copy_outlives_a_damaged_pack(filled) -> None:
    compact(filled.path, filled.digest)
    for seed, num_tokens in enumerate((1, 255, 256, 257, 700)):
        filled.write(num_tokens, seed)
    shard = filled.packs()[0] / "hidden_states/c/0/0/0"
    data = bytearray(shard.read_bytes())
    data[5] ^= 4
    shard.write_bytes(data)
    first = open_pack(filled.path, filled.spec, filled.packs()[0].name).sample_hashes[0]
    compact(filled.path, filled.digest)
    # The damaged copy's source was packed again, under a name of its own; the others were dropped.
    assert not filled.objects()
    assert len(filled.packs()) == 2
    findings = check_store(filled.path, filled.digest).findings
    assert [(finding.sample_hash, finding.reason) for finding in findings] == [(first, "checksum")]
    repair(filled.path, findings)
    assert_all_there(filled)


def test_a_damaged_object_is_skipped_named_and_kept(filled) -> None:
    victim = filled.objects()[2]
    shard = victim / "hidden_states/c/0/0/0"
    shard.write_bytes(shard.read_bytes()[:-1])
    torn = filled.objects()[3]
    (torn / "input_ids/c/0").unlink()
    info = compact(filled.path, filled.digest)
    assert info is not None
    assert info.skipped == [victim.name, torn.name]
    assert filled.objects() == [victim, torn]
    assert info.samples == len(filled.samples) - 2


def test_a_store_of_damaged_objects_makes_no_pack(make_filled: Callable) -> None:
    filled = make_filled((300,))
    shutil.rmtree(filled.objects()[0] / "hidden_states")
    info = compact(filled.path, filled.digest)
    assert info is not None
    assert (info.pack_ids, info.samples, len(info.skipped)) == ([], 0, 1)
    assert not filled.packs()


def test_two_compactions_of_the_same_objects_agree_on_the_pack(filled, tmp_path: Path) -> None:
    twin = tmp_path / "twin"
    shutil.copytree(filled.path, twin)
    compact(filled.path, filled.digest)
    compact(twin, filled.digest)
    ours, theirs = filled.packs()[0], next((twin / "packs" / filled.digest).iterdir())
    assert ours.name == theirs.name
    files = [file.relative_to(ours) for file in ours.rglob("*") if file.is_file()]
    assert all((ours / file).read_bytes() == (theirs / file).read_bytes() for file in files)


def test_the_loser_of_a_race_keeps_what_the_winner_does_not_hold(filled) -> None:
    """The pack's name is taken by a pack whose samples repair has removed: no source may go."""
    compact(filled.path, filled.digest)
    (pack,) = filled.packs()
    for name in filled.samples:
        removal = filled.path / "removed" / filled.digest / pack.name / name
        removal.parent.mkdir(parents=True, exist_ok=True)
        removal.touch()
    for seed, num_tokens in enumerate((1, 255, 256, 257, 700)):
        filled.write(num_tokens, seed)
    compact(filled.path, filled.digest)
    assert len(filled.objects()) == len(filled.samples)
    assert_all_there(filled)


def test_removals_left_without_their_pack_do_not_hide_the_next_one(filled) -> None:
    compact(filled.path, filled.digest)
    (pack,) = filled.packs()
    findings = [Finding(name, "pack", "checksum", "", pack.name, filled.digest) for name in filled.samples]
    repair(filled.path, findings)
    assert not filled.packs(), "a pack of which nothing is left goes into the quarantine"
    stale = filled.path / "removed" / filled.digest / pack.name / next(iter(filled.samples))
    stale.parent.mkdir(parents=True)
    stale.touch()
    for seed, num_tokens in enumerate((1, 255, 256, 257, 700)):
        filled.write(num_tokens, seed)
    compact(filled.path, filled.digest)
    assert filled.packs() == [pack]
    assert_all_there(filled)


@pytest.mark.parametrize("position", [100, -100], ids=["chunk", "index"])
def test_bytes_that_change_after_the_write_stop_the_pack(
    filled, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """The read-back is real: damage done between write and read-back keeps the sources and commits nothing."""
    submit = ReadBack.submit

    def damage_then_submit(read_back: ReadBack, path: Path, start: int, sizes: Sequence[int], tail: bytes) -> None:
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
        submit(read_back, path, start, sizes, tail)

    monkeypatch.setattr(ReadBack, "submit", damage_then_submit)
    with pytest.raises(CorruptObjectError, match="check the disk"):
        compact(filled.path, filled.digest)
    assert not filled.packs()
    assert len(filled.objects()) == len(filled.samples)
    assert not list((filled.path / "tmp").iterdir())


def test_a_full_disk_stops_compaction_without_loss(small_disk: Callable, make_filled: Callable) -> None:
    filled = make_filled((2000,) * 4, path=small_disk("size=4m") / "store")
    room = filled.path.parent / "filler"
    with pytest.raises(OSError, match="No space"):
        room.write_bytes(bytes(4 << 20))
    with room.open("r+b") as file:
        file.truncate(room.stat().st_size - (300 << 10))
    with pytest.raises(StoreFullError, match=r"no space left at .*store \(up to \d{7} bytes were needed\)"):
        compact(filled.path, filled.digest)
    assert not list((filled.path / "tmp").iterdir())
    room.unlink()
    assert len(filled.objects()) == 4
    compact(filled.path, filled.digest)
    assert_all_there(filled)


def test_a_packed_sample_takes_one_percent_and_2_kilobytes_more_than_its_chunks(make_filled: Callable) -> None:
    filled = make_filled((700, 60, 257, 1, 300) * 8)
    info = compact(filled.path, filled.digest)
    assert info is not None
    stored = sum(file.stat().st_size for file in (filled.path / "packs").rglob("*") if file.is_file())
    assert stored <= 1.01 * info.bytes + 2048 * info.samples


def test_memory_is_bounded_by_chunks_not_samples(make_filled: Callable) -> None:
    filled = make_filled((), hidden_size=1024)
    filled.write(3000, seed=0)  # 18 MB of states, 13 MB encoded
    tracemalloc.start()
    info = compact(filled.path, filled.digest)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert info is not None
    assert info.bytes > 10 << 20
    assert peak < 4 << 20


def test_compactions_writers_and_readers_at_once_lose_nothing(make_filled: Callable, sample_of: Callable) -> None:
    filled = make_filled((300, 1, 513) * 10)
    store = open_store(filled.path)
    early = {name: store[name] for name in store}  # located while loose, read after the move

    def read(names: list[str]) -> None:
        for _ in range(4):
            for name in names:
                assert store[name].hidden_states().tobytes() == filled.samples[name][1].tobytes()

    def write(seeds: range) -> None:
        writer = ObjectWriter(filled.path, filled.spec)
        for seed in seeds:
            writer.write(*sample_of(100, seed))

    with ThreadPoolExecutor(6) as pool:
        names = list(filled.samples)
        jobs = [pool.submit(read, names), pool.submit(read, names[::-1]), pool.submit(write, range(1000, 1030))]
        jobs += [pool.submit(compact, filled.path, filled.digest, shard_bytes=1) for _ in range(3)]
        for job in jobs:
            job.result()
    for name, sample in early.items():
        assert sample.hidden_states().tobytes() == filled.samples[name][1].tobytes()
    for seed in range(1000, 1030):
        filled.write(100, seed)
    compact(filled.path, filled.digest)
    assert not filled.objects()
    assert_all_there(filled)


def test_an_index_whose_samples_do_not_make_its_name_is_refused(filled, spec: StateSpec) -> None:
    compact(filled.path, filled.digest)
    (pack,) = filled.packs()
    other = pack.with_name("0" * 64)
    shutil.copytree(pack, other)
    with pytest.raises(CorruptObjectError):
        Pack(other, spec, other.name)
    with pytest.raises(CorruptObjectError):
        open_store(filled.path)
