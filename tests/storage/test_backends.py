"""A store does the same in a folder and in a bucket: every test here runs on both."""

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from stored_files import damage_file, list_files, remove_file, write_file

from storage import TokensSpec, init_store, open_store, open_tokens, tiers
from storage.checks import check_store
from storage.collection import collect_garbage
from storage.draft_vocabularies import (
    DraftVocabulary,
    DraftVocabularySpec,
    open_draft_vocabulary,
    write_draft_vocabulary,
)
from storage.errors import NotAStoreError, StoreNotFoundError, StoreVersionError
from storage.file_checks import check_files, check_header
from storage.findings import Finding
from storage.objects import ObjectWriter
from storage.packs import Compaction, compact
from storage.paths import ObjectPath, StorePath
from storage.repairs import repair
from storage.store import add_spec, find_spec
from storage.tokens import TokensWriter

COMMITS = re.compile(r"(objects/\w+/\w+|packs/\w+)/\w+/zarr.json")
TOKENS = TokensSpec(("d" * 64,), "t" * 64, "c" * 64)


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest) -> StorePath:
    return (
        request.getfixturevalue("tmp_path") / "store"
        if request.param == "folder"
        else request.getfixturevalue("s3_place")
    )


@pytest.fixture
def filled(make_filled: Callable, place: StorePath) -> Any:
    return make_filled(path=place)


def assert_all_there(filled, names: Iterable[str] | None = None) -> None:
    names = set(filled.samples) if names is None else set(names)
    store = open_store(filled.path, filled.digest)
    assert set(store) == names
    for name in names:
        input_ids, states = filled.samples[name]
        assert np.array_equal(store[name].input_ids, input_ids)
        assert store[name].hidden_states().tobytes() == states.tobytes()
    assert not check_store(filled.path, filled.digest).findings


def encoded(filled) -> dict[str, list[bytes]]:
    store = open_store(filled.path)
    return {name: [bytes(chunk.data) for chunk in sample.stored_rows.encoded()] for name, sample in store.items()}


def name_samples(filled, names: Iterable[str]) -> str:
    with TokensWriter(filled.path, TOKENS) as writer:
        for row, name in enumerate(names):
            ids = filled.samples[name][0]
            writer.append(ids, np.ones(len(ids), np.uint8), row)
        writer.reject("chats.jsonl", 3, 3, "too_long", "it has 9 tokens")
        return writer.commit().digest


def generic(name: str) -> str:
    """Return the name of a file without the attempt that wrote it."""
    return re.sub(r"/\w{32}(?=/)", "", name)


def files_in(filled, kind: str) -> dict[str, int]:
    return {name: size for name, size in list_files(filled.path).items() if name.startswith(f"{kind}/")}


def staged(filled) -> list[str]:
    return list(files_in(filled, "tmp"))


def test_what_was_written_is_read(filled) -> None:
    assert_all_there(filled)
    store = open_store(str(filled.path))
    assert store.num_tokens() == sum(len(ids) for ids, _ in filled.samples.values())
    assert store.stored_bytes() == sum(files_in(filled, "objects").values())
    assert not staged(filled)


@pytest.mark.parametrize("packed", [False, True])
def test_layers_and_rows_select_like_numpy(filled, packed: bool) -> None:
    if packed:
        compact(filled.path, filled.digest, shard_bytes=2 * 256 * filled.spec.bytes_per_token)
    store = open_store(filled.path)
    for name, (_, states) in filled.samples.items():
        for layers, slots in ((None, [0, 1, 2]), (["final"], [2]), ([5, 2], [1, 0])):
            for rows in (slice(None), slice(0, 1), slice(250, 300), slice(-3, None), slice(5, 5)):
                found = store[name].hidden_states(layers, rows)
                assert np.array_equal(found.view("u2"), states.view("u2")[rows][:, slots])
    found = store.read_hidden_states(list(filled.samples), ["final"], slice(0, 100))
    for values, (_, states) in zip(found, filled.samples.values(), strict=True):
        assert np.array_equal(values.view("u2"), states.view("u2")[:100, 2:])


def test_what_is_there_is_not_written_again(filled, sample_of: Callable) -> None:
    before = list_files(filled.path)
    info = ObjectWriter(filled.path, filled.spec).write(*sample_of(257, 3))
    assert info.existed
    assert list_files(filled.path) == before
    assert open_store(filled.path).missing([info.sample_hash, "0" * 64]) == ["0" * 64]


def test_writers_that_race_for_a_sample_leave_a_whole_one(make_filled: Callable, place: StorePath) -> None:
    """Their states differ, as those of runs with other batches do: no part of one may come to a part of another."""
    filled = make_filled((), path=place)
    input_ids = np.arange(600, dtype=np.int32)
    start = Barrier(4)

    def write(value: int) -> None:
        states = np.full((600, filled.spec.num_captured, filled.spec.hidden_size), value, np.uint16)
        writer = ObjectWriter(filled.path, filled.spec)
        start.wait()
        writer.write(input_ids, states)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, [0x3F80, 0x3F90, 0x4000, 0x4010]))
    (name,) = open_store(filled.path)
    states = open_store(filled.path)[name].hidden_states().view("u2")
    assert (states == states[0, 0, 0]).all()
    assert check_store(filled.path, filled.digest).findings == []
    compact(filled.path, filled.digest)
    assert not files_in(filled, "objects")
    assert (open_store(filled.path)[name].hidden_states().view("u2") == states).all()
    assert not staged(filled)


def test_compaction_copies_every_chunk_as_it_is(filled) -> None:
    before = {
        name: [bytes(c.data) for c in sample.stored_rows.encoded()] for name, sample in open_store(filled.path).items()
    }
    info = compact(filled.path, filled.digest, shard_bytes=2 * 256 * filled.spec.bytes_per_token)
    assert info is not None
    assert (info.samples, info.skipped) == (len(before), [])
    assert not files_in(filled, "objects")
    assert not staged(filled)
    assert encoded(filled) == before
    assert compact(filled.path, filled.digest) is None
    assert_all_there(filled)


def test_compactions_at_the_same_time_lose_nothing_and_leave_each_sample_once(filled) -> None:
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: compact(filled.path, filled.digest), range(3)))
    assert_all_there(filled)
    compact(filled.path, filled.digest)
    assert_all_there(filled)
    assert not files_in(filled, "objects")
    assert sum(len(pack) for pack in open_store(filled.path).catalog.packs) == len(filled.samples)


def test_an_open_store_finds_samples_that_have_moved_into_a_pack(filled) -> None:
    store = open_store(filled.path)
    names = list(store)
    samples = {name: store[name] for name in names}
    compact(filled.path, filled.digest)
    for name in names[:2]:
        assert samples[name].hidden_states().tobytes() == filled.samples[name][1].tobytes()
    for values, name in zip(store.read_hidden_states(names), names, strict=True):
        assert values.tobytes() == filled.samples[name][1].tobytes()


def test_small_packs_are_merged(make_filled: Callable, place: StorePath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "PACKS_PER_TIER", 3)
    filled = make_filled((), path=place)
    for seed in range(3):
        filled.write(30 + seed, seed)
        Compaction(filled.path, filled.spec).pack_loose()
    info = compact(filled.path, filled.digest)
    assert info is not None
    assert len(info.merged) == 3
    assert len(open_store(filled.path).catalog.packs) == 1
    assert_all_there(filled)


@pytest.mark.parametrize("packed", [False, True])
def test_garbage_is_counted_and_freed(make_filled: Callable, place: StorePath, packed: bool) -> None:
    filled = make_filled((40, 300, 60, 513), path=place)
    if packed:
        compact(filled.path, filled.digest)
    kept = list(filled.samples)[:2]
    name_samples(filled, kept)
    before = list_files(filled.path)
    garbage = collect_garbage(filled.path)
    assert garbage.counts == {"unreferenced": 2}
    assert list_files(filled.path) == before
    collect_garbage(filled.path, is_dry=False)
    assert_all_there(filled, kept)
    assert sum(list_files(filled.path).values()) <= sum(before.values()) - garbage.bytes["unreferenced"]
    assert not collect_garbage(filled.path).counts
    assert not staged(filled)


def test_tokens_come_back(filled) -> None:
    names = [*filled.samples, next(iter(filled.samples))]
    digest = name_samples(filled, names)
    tokens = open_tokens(str(filled.path), digest)
    assert tokens is not None
    assert tokens.sample_hashes == names
    assert [np.array_equal(tokens.input_ids(i), filled.samples[name][0]) for i, name in enumerate(names)] == [True] * 6
    assert [reject["reason"] for reject in tokens.rejects()] == ["too_long"]
    assert open_tokens(filled.path, "0" * 64) is None
    assert name_samples(filled, names) == digest
    assert not check_files(filled.path)


def test_a_draft_vocabulary_comes_back(filled) -> None:
    spec = DraftVocabularySpec("d" * 64, "t" * 64, target_size=6, draft_size=3)
    made = DraftVocabulary(np.array([1, 1, 3]), np.array([0, 1, 1, 0, 0, 1], bool), 0.75)
    assert open_draft_vocabulary(filled.path, spec) is None
    write_draft_vocabulary(filled.path, spec, made)
    write_draft_vocabulary(filled.path, spec, made)
    found = open_draft_vocabulary(filled.path, spec)
    assert found is not None
    assert found.target_ids.tolist() == [1, 2, 5]
    assert len(files_in(filled, "draft_vocabularies")) == 5
    assert_all_there(filled)


@pytest.mark.parametrize("changes", [{"mantissa_bits": 4}, {"storage_dtype": "float8_e4m3fn"}], ids=["bits", "float8"])
def test_lossy_states_say_how_lossy(make_filled: Callable, place: StorePath, changes: dict[str, Any]) -> None:
    filled = make_filled((40, 300), path=place, **changes)
    loose = open_store(filled.path)
    before = {name: sample.hidden_states().tobytes() for name, sample in loose.items()}
    error = loose.rounding_error()
    compact(filled.path, filled.digest)
    assert error is not None
    assert error.largest > 0
    packed = open_store(filled.path)
    assert packed.rounding_error() == error
    assert {name: sample.hidden_states().tobytes() for name, sample in packed.items()} == before


@pytest.mark.parametrize("packed", [False, True])
def test_every_damage_is_found_and_the_next_run_makes_it_good(
    make_filled: Callable, place: StorePath, packed: bool
) -> None:
    """Each file with a flipped bit, then removed. In a bucket, a group without its zarr.json is not there."""

    def run() -> None:
        filled.write(300, 0)
        if packed:
            compact(filled.path, filled.digest)

    filled = make_filled((), path=place)
    run()
    kind = "packs" if packed else "objects"
    for name in map(generic, files_in(filled, kind)):
        is_group = COMMITS.fullmatch(name) is not None
        in_bucket = isinstance(place, ObjectPath)
        if in_bucket and not is_group and not name.endswith(("states/c/0/0/0", "checksum/c/0")):
            continue  # each takes seconds there
        for damage in ("flipped", "removed"):
            path = next(filled.path / found for found in files_in(filled, kind) if generic(found) == name)
            damage_file(path, 5) if damage == "flipped" else remove_file(path)
            findings = check_store(filled.path, filled.digest).findings
            if damage == "removed" and is_group and in_bucket:
                assert len(open_store(place)) == 0
                assert collect_garbage(place, is_dry=False).counts["staging"] == 1
            else:
                assert findings, (name, damage)
            repair(filled.path, findings)
            run()
            assert_all_there(filled)


def test_a_sample_removed_from_a_pack_is_missing_and_made_anew(filled) -> None:
    compact(filled.path, filled.digest)
    (pack,) = open_store(filled.path).catalog.packs
    name = pack.name(1)
    finding = Finding(name, "pack", "non_finite", "as if", pack.pack_id, filled.digest)
    assert repair(filled.path, [finding]) == 1
    assert repair(filled.path, [finding]) == 0
    assert name not in open_store(filled.path)
    seed = list(filled.samples).index(name)
    filled.write(len(filled.samples[name][0]), seed)
    assert_all_there(filled)
    compact(filled.path, filled.digest)
    collect_garbage(filled.path, is_dry=False)
    assert_all_there(filled)
    assert not files_in(filled, "removed")
    assert sum(len(pack) for pack in open_store(filled.path).catalog.packs) == len(filled.samples)


def test_what_is_no_store_is_refused(place: StorePath) -> None:
    with pytest.raises(StoreNotFoundError):
        open_store(place)
    write_file(place / "notes.txt", b"mine")
    for call in (open_store, check_header):
        with pytest.raises(NotAStoreError, match=r"has no aerie\.json"):
            call(place)
    with pytest.raises(NotAStoreError, match=r"holds 'notes\.txt'"):
        init_store(place)
    assert list_files(place) == {"notes.txt": 4}
    write_file(place / "aerie.json", b'{"format":"aerie","format_version":7}')
    with pytest.raises(StoreVersionError, match="version 7"):
        init_store(place)


def test_a_lost_header_is_mended(filled) -> None:
    remove_file(filled.path / "aerie.json")
    assert repair(filled.path, check_header(filled.path)) == 1
    assert_all_there(filled)


def test_specs_and_tokens_that_are_damaged_are_set_aside(filled) -> None:
    digest = name_samples(filled, filled.samples)
    (name,) = (name for name in files_in(filled, "tokens") if name.endswith("loss_mask/c/0"))
    damage_file(filled.path / name, 3)
    damage_file(filled.path / f"specs/{filled.digest}.json", 30)
    findings = check_files(filled.path)
    assert {finding.where for finding in findings} == {"tokens", "spec"}
    assert repair(filled.path, findings) == 2
    assert open_tokens(filled.path, digest) is None
    add_spec(filled.path, filled.spec)
    assert find_spec(filled.path) == filled.digest
    garbage = collect_garbage(filled.path, is_dry=False)
    assert garbage.is_unsure
    assert name_samples(filled, filled.samples) == digest
    collect_garbage(filled.path, is_dry=False)
    assert not files_in(filled, "quarantine")
    assert_all_there(filled)


def test_what_is_given_up_leaves_nothing(make_filled: Callable, place: StorePath) -> None:
    filled = make_filled((), path=place)
    with TokensWriter(filled.path, TOKENS):
        pass
    assert open_tokens(filled.path, TOKENS.digest()) is None
    assert set(list_files(filled.path)) == {"aerie.json", f"specs/{filled.digest}.json"}
