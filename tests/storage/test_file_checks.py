"""Damage beside the states is found, named and mended: header, specs, tokens artifacts."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import StateSpec, TokensSpec, init_store, open_store, open_tokens
from storage.codecs import add_checksum
from storage.errors import NotAStoreError, StorageError, StoreVersionError
from storage.file_checks import check_files, check_header
from storage.findings import Finding
from storage.packs import compact
from storage.repairs import repair
from storage.store import add_spec
from storage.tokens import TokensWriter

SPEC = TokensSpec(("d" * 64,), "t" * 64, "c" * 64, {"max_length": None}, 1)
HEADER = b'{"format":"aerie","format_version":1}'


def add_tokens(store: Path) -> Path:
    with TokensWriter(store, SPEC) as writer:
        for row in range(5):
            ids = np.arange(row, 2 * row + 9, dtype=np.int32)
            writer.append(ids, np.arange(len(ids), dtype=np.uint8) % 2, row)
        writer.reject("chats.jsonl", 6, 5, "empty", "no assistant turn")
        writer.commit()
    return store / "tokens" / SPEC.digest()


def whats(findings: list[Finding]) -> list[tuple[str, str, str | None]]:
    return [(finding.where, finding.reason, finding.digest) for finding in findings]


def test_a_sound_store_has_no_findings_and_progress_reaches_all(filled) -> None:
    add_tokens(filled.path)
    seen: list[tuple[int, int]] = []
    assert check_header(filled.path) == []
    assert check_files(filled.path, lambda *counts: seen.append(counts)) == []
    assert seen == [(1, 2), (2, 2)]


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << position % 8)]) + data[position + 1 :]


@pytest.mark.parametrize("packed", [False, True], ids=["loose", "packed"])
def test_a_header_is_mended_by_what_lies_beside_it(filled, packed: bool) -> None:
    if packed:
        compact(filled.path, filled.digest)
    header = filled.path / "aerie.json"
    damaged = [flip(HEADER, position) for position in range(len(HEADER))]
    for data in [*damaged, HEADER.replace(b"1", b"3"), HEADER[:-1], b"", None]:
        header.unlink() if data is None else header.write_bytes(data)
        with pytest.raises(StorageError, match="mended by aerie validate --repair"):
            open_store(filled.path)
        with pytest.raises(StorageError, match="mended by aerie validate --repair"):
            init_store(filled.path)
        findings = check_header(filled.path)
        assert whats(findings) == [("header", "metadata", None)]
        assert repair(filled.path, findings) == 1
        assert repair(filled.path, findings) == 0
        assert header.read_bytes() == HEADER
    assert set(open_store(filled.path)) == set(filled.samples)


def test_a_header_of_a_later_version_is_left_alone(filled) -> None:
    header = filled.path / "aerie.json"
    header.write_bytes(HEADER.replace(b"1", b"2"))
    for group in filled.path.glob("objects/*/*/*/zarr.json"):
        group.write_text(group.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(StoreVersionError):
        check_header(filled.path)
    with pytest.raises(StoreVersionError):
        repair(filled.path, [Finding(None, "header", "metadata", "")])
    assert header.read_bytes() == HEADER.replace(b"1", b"2")


def test_a_folder_of_other_things_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(NotAStoreError):
        check_header(tmp_path)


def test_the_file_of_a_spec_is_set_aside_and_added_again_by_the_next_run(filled, spec: StateSpec) -> None:
    file = filled.path / "specs" / f"{filled.digest}.json"
    data = file.read_bytes()
    for damaged, reason in ((flip(data, 20), "metadata"), (data[:-1], "metadata"), (b"", "metadata"), (None, "torn")):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        findings = check_files(filled.path)
        assert whats(findings) == [("spec", reason, filled.digest)]
        assert repair(filled.path, findings) == (damaged is not None)
        assert not file.exists()
        add_spec(filled.path, spec)
        assert check_files(filled.path) == []
    assert len(list((filled.path / "quarantine" / filled.digest).iterdir())) == 3


def test_a_tokens_artifact_is_set_aside_whatever_file_of_it_is_damaged(filled) -> None:
    folder = add_tokens(filled.path)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == 14
    for file in files:
        data = file.read_bytes()
        for damaged in (flip(data, len(data) // 2), data[:-1], b"", None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            findings = check_files(filled.path)
            assert [(finding.where, finding.digest) for finding in findings] == [("tokens", SPEC.digest())]
            file.write_bytes(data)
    (folder / "row/c/0").write_bytes(b"")
    assert repair(filled.path, check_files(filled.path)) == 1
    assert open_tokens(filled.path, SPEC.digest()) is None
    add_tokens(filled.path)
    assert check_files(filled.path) == []


@pytest.mark.parametrize("name", ["input_ids", "sample_hash", "loss_mask"])
def test_other_values_with_a_good_checksum_are_found(filled, name: str) -> None:
    file = add_tokens(filled.path) / name / "c" / ("0/0" if name == "sample_hash" else "0")
    data = bytearray(file.read_bytes()[:-4])
    data[0] ^= 2
    file.write_bytes(add_checksum(bytes(data)))
    reason = "metadata" if name == "loss_mask" else "hash_mismatch"
    assert whats(check_files(filled.path)) == [("tokens", reason, SPEC.digest())]


def test_an_empty_folder_of_tokens_is_a_torn_artifact(filled) -> None:
    shutil.rmtree(add_tokens(filled.path))
    (filled.path / "tokens" / SPEC.digest()).mkdir()
    assert whats(check_files(filled.path)) == [("tokens", "torn", SPEC.digest())]


def test_repair_needs_no_order(make_filled: Callable) -> None:
    """A header and what lies below it are mended in one go."""
    filled = make_filled((20, 30))
    victim = filled.objects()[0]
    (victim / "zarr.json").write_bytes(b"")
    (filled.path / "aerie.json").write_bytes(b"")
    findings = [Finding(victim.name, "loose", "metadata", "", digest=filled.digest), *check_header(filled.path)]
    assert repair(filled.path, findings) == 2
    assert open_store(filled.path).missing(filled.samples) == [victim.name]
