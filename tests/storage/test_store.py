"""Opening, creating and asking a store."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from storage import StateSpec, StorageError, init_store, open_store
from storage.checks import check_store
from storage.errors import (
    CorruptObjectError,
    NotAStoreError,
    SampleNotFoundError,
    SpecError,
    StoreNotFoundError,
    StoreVersionError,
    TornObjectError,
)
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.store import add_spec, find_spec, read_spec


def test_init_is_idempotent_and_makes_parents(tmp_path: Path) -> None:
    path = tmp_path / "a/b/store"
    init_store(path)
    header = (path / "aerie.json").read_bytes()
    init_store(path)
    assert header == b'{"format":"aerie","format_version":1}' == (path / "aerie.json").read_bytes()


def test_a_folder_with_other_things_is_not_made_a_store(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(NotAStoreError, match="thesis"):
        init_store(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(NotAStoreError, match="is a file"):
        init_store(tmp_path / "thesis.txt")


def start_writing(path: Path) -> None:
    ObjectWriter(path, StateSpec("f", "A", 2, 8, (1,), "float32", "float32", None, "test", "1"))


def check_anything(path: Path) -> None:
    check_store(path, "0" * 64)


@pytest.mark.parametrize("operation", [open_store, init_store, start_writing, check_anything])
@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        ('{"format":"aerie","format_version":2}', StoreVersionError, "has format version 2, this aerie reads 1"),
        ('{"format":"aerie","format_version":true}', StoreVersionError, "True"),
        ('{"format":"aerie"}', StoreVersionError, "None"),
        ('{"format":"git","format_version":1}', NotAStoreError, "'git'"),
        ("[]", NotAStoreError, "not readable"),
        ("{", NotAStoreError, "not readable"),
    ],
)
def test_other_versions_and_formats_are_refused(
    tmp_path: Path, operation: Callable, header: str, error: type, message: str
) -> None:
    (tmp_path / "aerie.json").write_text(header)
    with pytest.raises(error, match=message):
        operation(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["aerie.json"]


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "none")
    with pytest.raises(NotAStoreError):
        open_store(str(tmp_path))


def test_a_spec_is_chosen_by_a_unique_prefix(filled) -> None:
    other = add_spec(filled.path, replace(filled.spec, layers=(1,)))
    with pytest.raises(SpecError, match=f"2 specs.*{filled.digest}"):
        open_store(filled.path)
    assert open_store(filled.path, filled.digest[:10]).spec_digest == filled.digest
    assert len(open_store(filled.path, other)) == 0
    with pytest.raises(SpecError, match="0 specs"):
        open_store(filled.path, "x")


def test_a_spec_is_found_where_a_damaged_pack_keeps_the_store_from_opening(filled) -> None:
    compact(filled.path, filled.digest)
    for document in filled.path.glob("packs/*/*/zarr.json"):
        document.unlink()
    with pytest.raises(CorruptObjectError, match="aerie validate --repair"):
        open_store(filled.path)
    assert find_spec(filled.path) == find_spec(filled.path, filled.digest[:8]) == filled.digest


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    init_store(tmp_path / "s")
    with pytest.raises(SpecError, match="no states yet"):
        open_store(tmp_path / "s")


def test_adding_a_spec_again_changes_nothing(filled) -> None:
    file = filled.path / "specs" / f"{filled.digest}.json"
    before = file.stat()
    assert add_spec(filled.path, filled.spec) == filled.digest
    assert file.stat().st_ino == before.st_ino
    assert read_spec(filled.path, filled.digest) == filled.spec


def test_every_flipped_bit_of_a_spec_is_noticed(filled) -> None:
    file = filled.path / "specs" / f"{filled.digest}.json"
    data = file.read_bytes()
    for position in range(len(data)):
        file.write_bytes(data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :])
        with pytest.raises(CorruptObjectError, match="digest in its name"):
            open_store(filled.path)
    add_spec(filled.path, filled.spec)
    assert read_spec(filled.path, filled.digest) == filled.spec, "the job that made it heals it"


def test_names_that_are_not_ours_are_ignored(filled) -> None:
    filled.write(20, seed=60)
    for folder in ("", "specs", f"objects/{filled.digest}", f"objects/{filled.digest}/00", f"packs/{filled.digest}"):
        (filled.path / folder).mkdir(parents=True, exist_ok=True)
        (filled.path / folder / ".nfs0001").touch()
        (filled.path / folder / "notes").mkdir()
    assert set(open_store(filled.path)) == set(filled.samples)
    compact(filled.path, filled.digest)
    assert set(open_store(filled.path)) == set(filled.samples)
    assert not check_store(filled.path, filled.digest).findings


def test_a_store_is_a_mapping(filled) -> None:
    store = open_store(filled.path)
    assert list(store) == sorted(filled.samples)
    assert len(store) == len(filled.samples)
    assert all(name in store for name in filled.samples)
    assert "0" * 64 not in store
    assert store.get("0" * 64) is None
    with pytest.raises(KeyError):
        store["0" * 64]
    with pytest.raises(SampleNotFoundError, match="has no sample 0000"):
        store["0" * 64]


def test_missing_keeps_order_and_reads_no_payload(filled) -> None:
    names = list(filled.samples)
    wanted = ["1" * 64, names[2], "0" * 64, names[0], "1" * 64]
    for folder in filled.path.glob("objects/*/*/*/*/c"):
        shutil.rmtree(folder)  # no payload is there to read
    assert open_store(filled.path).missing(wanted) == ["1" * 64, "0" * 64, "1" * 64]


def test_missing_of_a_packed_store_reads_the_index_alone(filled) -> None:
    compact(filled.path, filled.digest)
    for name in ("hidden_states/c", "input_ids/c"):
        shutil.rmtree(filled.packs()[0] / name)
    store = open_store(filled.path)
    assert store.missing([*filled.samples, "0" * 64]) == ["0" * 64]
    with pytest.raises(TornObjectError):
        _ = store[next(iter(filled.samples))].input_ids


def test_refresh_sees_what_others_wrote(filled) -> None:
    store = open_store(filled.path)
    info = filled.write(33, seed=99)
    assert info.sample_hash not in store
    store.refresh()
    assert info.sample_hash in store


def test_stored_bytes_are_those_on_disk(filled) -> None:
    def on_disk() -> int:
        folders = (filled.path / "objects", filled.path / "packs")
        return sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())

    assert open_store(filled.path).stored_bytes() == on_disk() > 0
    compact(filled.path, filled.digest)
    assert open_store(filled.path).stored_bytes() == on_disk() > 0


def test_every_error_has_a_kind_of_its_own() -> None:
    def tree(kind: type[StorageError]) -> list[type[StorageError]]:
        return [kind, *(found for child in kind.__subclasses__() for found in tree(child))]

    kinds = {error: error.kind for error in tree(StorageError) if not issubclass(error, CorruptObjectError)}
    assert len(set(kinds.values())) == len(kinds) >= 9
    reasons = {error.reason for error in tree(CorruptObjectError)}
    assert reasons == {"metadata", "torn", "checksum", "hash_mismatch", "row_count", "non_finite", "all_zero"}


def test_a_header_is_json_for_everyone(filled) -> None:
    assert json.loads((filled.path / "aerie.json").read_text()) == {"format": "aerie", "format_version": 1}
