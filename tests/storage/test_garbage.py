"""What nobody needs is found, counted in bytes and freed; what anybody may need stays."""

import os
import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import StateSpec, TokensSpec, collection, init_store, open_store
from storage.checks import check_store
from storage.collection import collect_garbage
from storage.errors import CorruptObjectError
from storage.file_checks import check_files
from storage.objects import ObjectWriter
from storage.packs import Compaction, compact
from storage.repairs import repair
from storage.store import add_spec
from storage.tokens import TokensWriter


def assert_all_there(filled, names: Iterable[str]) -> None:
    store = open_store(filled.path, filled.digest)
    assert set(store) == set(names)
    for name in names:
        assert store[name].hidden_states().tobytes() == filled.samples[name][1].tobytes()
    assert not check_store(filled.path, filled.digest).findings


def name_samples(filled, names: Iterable[str], data: str = "d") -> Path:
    """Write a tokens artifact that names these samples."""
    with TokensWriter(filled.path, TokensSpec((data * 64,), "t" * 64, "c" * 64)) as writer:
        for row, name in enumerate(names):
            ids = filled.samples[name][0]
            writer.append(ids, np.ones(len(ids), np.uint8), row)
        digest = writer.commit().digest
    return Path(filled.path / "tokens" / digest)


def sizes(folder: Path) -> dict[Path, int]:
    return {file: file.stat().st_size for file in folder.rglob("*") if file.is_file()}


def states_bytes(filled) -> int:
    return sum(sizes(filled.path / "packs").values()) + sum(sizes(filled.path / "objects").values())


@pytest.fixture
def filled(make_filled: Callable) -> Any:
    """A store with two packs and loose objects."""
    filled = make_filled((300, 40, 513, 60))
    Compaction(filled.path, filled.spec).pack_loose()
    for seed, num_tokens in enumerate((700, 50, 260), start=10):
        filled.write(num_tokens, seed)
    Compaction(filled.path, filled.spec).pack_loose()
    for seed, num_tokens in enumerate((90, 30), start=20):
        filled.write(num_tokens, seed)
    return filled


def test_a_store_of_what_is_named_has_no_garbage(filled) -> None:
    name_samples(filled, filled.samples)
    before = sizes(filled.path)
    assert not collect_garbage(filled.path).counts
    assert sizes(filled.path) == before
    assert not collect_garbage(filled.path, is_dry=False).counts
    assert_all_there(filled, filled.samples)


@pytest.mark.parametrize("share", [2, 3])
def test_samples_that_no_tokens_artifact_names_go_and_free_what_was_said(filled, share: int) -> None:
    kept = sorted(filled.samples)[::share]
    name_samples(filled, kept)
    before = sizes(filled.path)
    found = collect_garbage(filled.path)
    assert sizes(filled.path) == before, "a dry run changes nothing"
    assert found.counts == {"unreferenced": len(filled.samples) - len(kept)}
    size_before = states_bytes(filled)
    freed = collect_garbage(filled.path, is_dry=False)
    assert (freed.counts, freed.bytes, freed.stayed) == (found.counts, found.bytes, [])
    # The index and the metadata shrink too, by a few bytes a sample.
    assert found.bytes["unreferenced"] <= size_before - states_bytes(filled) < found.bytes["unreferenced"] + 20_000
    assert_all_there(filled, kept)
    assert not collect_garbage(filled.path).counts


def test_a_sample_is_named_by_any_artifact_and_in_any_spec(filled) -> None:
    names = sorted(filled.samples)
    other = replace(filled.spec, layers=(1,))
    add_spec(filled.path, other)
    ids = filled.samples[names[0]][0]
    ObjectWriter(filled.path, other).write(ids, np.ones((len(ids), 1, 48), np.uint16))
    name_samples(filled, names[:4])
    name_samples(filled, names[3:6], data="e")
    collect_garbage(filled.path, is_dry=False)
    assert_all_there(filled, names[:6])
    assert list(open_store(filled.path, other.digest())) == names[:1]


def test_a_pack_of_which_nothing_is_named_goes_without_a_new_one(filled) -> None:
    store = open_store(filled.path)
    first = set(store.catalog.packs[0].sample_hashes)
    name_samples(filled, set(filled.samples) - first)
    collect_garbage(filled.path, is_dry=False)
    assert len(filled.packs()) == 1
    assert_all_there(filled, set(filled.samples) - first)


def test_a_store_filled_without_tokens_artifacts_keeps_all(filled) -> None:
    assert not collect_garbage(filled.path, is_dry=False).counts
    assert_all_there(filled, filled.samples)


def test_a_damaged_tokens_artifact_stops_it_and_one_set_aside_protects_its_samples(filled) -> None:
    folder = name_samples(filled, sorted(filled.samples)[:2])
    shutil.copytree(folder, filled.path / "aside")
    name_samples(filled, sorted(filled.samples)[2:3], data="e")
    (folder / "sample_hash/c/0/0").write_bytes(b"")
    with pytest.raises(CorruptObjectError):
        collect_garbage(filled.path, is_dry=False)
    repair(filled.path, check_files(filled.path))
    garbage = collect_garbage(filled.path, is_dry=False)
    assert garbage.is_unsure
    assert not garbage.counts
    assert_all_there(filled, filled.samples)
    assert len(list((filled.path / "quarantine/tokens").iterdir())) == 1, "it may be all that is known"
    (filled.path / "aside").rename(folder)
    garbage = collect_garbage(filled.path, is_dry=False)
    assert not garbage.is_unsure
    assert garbage.counts == {"unreferenced": len(filled.samples) - 3, "quarantine": 1}
    assert_all_there(filled, sorted(filled.samples)[:3])


def damage(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_what_repair_removed_and_set_aside_goes(filled) -> None:
    damage(filled.packs()[0] / "hidden_states/c/0/0/0", 5)
    damage(filled.objects()[0] / "hidden_states/c/0/0/0", 5)
    findings = check_store(filled.path, filled.digest).findings
    repair(filled.path, findings)
    for finding in findings:
        del filled.samples[finding.sample_hash]
    size_before = sum(sizes(filled.path).values())
    garbage = collect_garbage(filled.path, is_dry=False)
    assert garbage.counts == {"quarantine": 1, "removed": 1}
    assert size_before - sum(sizes(filled.path).values()) > sum(garbage.bytes.values()) - 5000
    assert not list(filled.path.glob("removed/*/*"))
    assert not list(filled.path.glob("quarantine/*/*"))
    assert_all_there(filled, filled.samples)


def test_further_copies_of_a_sample_go(filled) -> None:
    shutil.copytree(filled.path / "packs", filled.path / "aside")
    shutil.rmtree(filled.path / "packs")
    for seed, num_tokens in ((0, 300), (1, 40), (10, 700), (99, 20)):
        filled.write(num_tokens, seed)
    Compaction(filled.path, filled.spec).pack_loose()
    shutil.copytree(filled.path / "aside", filled.path / "packs", dirs_exist_ok=True)
    filled.write(513, seed=2)
    assert len(filled.packs()) == 3
    garbage = collect_garbage(filled.path, is_dry=False)
    assert garbage.counts == {"copies": 4}
    assert len(filled.packs()) == 1
    assert not collect_garbage(filled.path).counts
    assert_all_there(filled, filled.samples)


def test_states_of_a_spec_that_was_removed_go(filled) -> None:
    other = replace(filled.spec, layers=(1,))
    digest = add_spec(filled.path, other)
    ObjectWriter(filled.path, other).write(np.arange(9, dtype=np.int32), np.ones((9, 1, 48), np.uint16))
    assert not collect_garbage(filled.path).counts
    (filled.path / "specs" / f"{digest}.json").unlink()
    assert collect_garbage(filled.path, is_dry=False).counts == {"unrecorded": 1}
    assert not list(filled.path.glob(f"*/{digest}"))
    assert_all_there(filled, filled.samples)


def test_staging_of_other_hosts_goes_only_by_an_age_that_is_given(filled) -> None:
    old, fresh = (filled.path / "tmp" / f"other.1-1-{name}" for name in ("aa", "bb"))
    for folder in (old, fresh):
        (folder / "hidden_states").mkdir(parents=True)
        (folder / "hidden_states" / "zarr.json").write_bytes(bytes(100))
    hour_ago = time.time() - 3600
    for path in (old / "hidden_states" / "zarr.json", old / "hidden_states", old):
        os.utime(path, (hour_ago, hour_ago))
    garbage = collect_garbage(filled.path, is_dry=False)
    assert (garbage.counts, garbage.foreign_bytes) == ({}, 200)
    assert not collect_garbage(filled.path, 7200, is_dry=False).counts
    garbage = collect_garbage(filled.path, 1800, is_dry=False)
    assert (garbage.counts, garbage.foreign_bytes) == ({"staging": 1}, 100)
    assert [fresh] == list((filled.path / "tmp").iterdir())


def test_a_pack_with_a_damaged_sample_stays_and_is_said_to(filled) -> None:
    name_samples(filled, sorted(filled.samples)[1:])
    packed = open_store(filled.path).catalog.packs
    for pack in packed:
        damage(pack.folder / "hidden_states/c/0/0/0", -400)
    garbage = collect_garbage(filled.path, is_dry=False)
    assert len(garbage.stayed) == 1
    findings = check_store(filled.path, filled.digest).findings
    repair(filled.path, findings)
    collect_garbage(filled.path, is_dry=False)
    lost = {finding.sample_hash for finding in findings}
    assert_all_there(filled, set(sorted(filled.samples)[1:]) - lost)


def test_data_that_comes_meanwhile_keeps_what_it_names(filled, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run begins between the look and the removal, and counts on samples that nobody named before."""
    name_samples(filled, sorted(filled.samples)[:1])
    drop = collection.drop_copies

    def name_all_then_drop(store: Path, spec: StateSpec) -> None:
        name_samples(filled, filled.samples, data="e")
        drop(store, spec)

    monkeypatch.setattr(collection, "drop_copies", name_all_then_drop)
    loose = {folder.name for folder in filled.objects()} - set(sorted(filled.samples)[:1])
    garbage = collect_garbage(filled.path, is_dry=False)
    assert garbage.counts == {"unreferenced": len(filled.samples) - 1}
    assert_all_there(filled, set(filled.samples) - loose)


def test_removals_without_a_pack_go(filled) -> None:
    stray = filled.path / "removed" / filled.digest / ("0" * 64) / ("1" * 64)
    stray.parent.mkdir(parents=True)
    stray.touch()
    collect_garbage(filled.path, is_dry=False)
    assert not stray.parent.exists()


def test_an_empty_store_has_no_garbage(tmp_path: Path) -> None:
    init_store(tmp_path)
    assert not collect_garbage(tmp_path, is_dry=False).counts


def test_it_runs_beside_compactions_readers_and_others_of_its_kind(make_filled: Callable) -> None:
    filled = make_filled(())
    for batch in range(6):
        for seed in range(4):
            filled.write(100 + 90 * seed, 10 * batch + seed)
        Compaction(filled.path, filled.spec).pack_loose()
    kept = sorted(filled.samples)[::2]
    name_samples(filled, kept)

    def read() -> None:
        store = open_store(filled.path)
        for name in kept:
            assert store[name].hidden_states().tobytes() == filled.samples[name][1].tobytes()

    def merge() -> None:
        store = open_store(filled.path)
        Compaction(filled.path, filled.spec).merge(store.catalog.packs[:3])

    with ThreadPoolExecutor(6) as pool:
        work: list[Callable[[], object]] = [lambda: collect_garbage(filled.path, is_dry=False), read, merge]
        work.append(lambda: compact(filled.path, filled.digest))
        for future in [pool.submit(job) for _ in range(5) for job in work]:
            future.result()
    collect_garbage(filled.path, is_dry=False)
    assert_all_there(filled, kept)
