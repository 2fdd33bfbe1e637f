"""The tokens artifact: what goes in comes out, counted exactly, whole or not at all."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import StorageError, TokensSpec, tokens
from storage.digests import sample_hash
from storage.errors import CorruptObjectError, SampleShapeError, StoreFullError, StoreNotFoundError
from storage.file_checks import verify_tokens
from storage.tokens import Tokens, TokensWriter, open_tokens

SPEC = TokensSpec(("d" * 64,), "t" * 64, "c" * 64, {"max_length": None}, 1)


def rows_of(lengths: list[int]) -> list[tuple[np.ndarray, np.ndarray, int]]:
    rng = np.random.default_rng(3)
    made = [
        (rng.integers(0, 9999, n, dtype=np.int32), rng.integers(0, 2, n, dtype=np.uint8), 2 * i)
        for i, n in enumerate(lengths)
    ]
    return [*made, (*made[0][:2], 1000)] if made else []


def write(root: Path, lengths: list[int]) -> Tokens:
    with TokensWriter(root, SPEC) as writer:
        for row in rows_of(lengths):
            writer.append(*row, truncated=row[2] == 1000)
        writer.reject("chats.jsonl", 4, 3, "malformed", "line 4 is not JSON: \u00fc")
        writer.reject("chats.jsonl", 6, 5, "empty", "no assistant turn")
        return writer.commit()


@pytest.mark.parametrize("chunk_rows", [1, 7, 64, 1 << 18])
def test_rows_come_back_in_order_and_duplicates_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_rows: int
) -> None:
    monkeypatch.setattr(tokens, "CHUNK_ROWS", chunk_rows)
    lengths = [5, 1, 64, 13]
    written = write(tmp_path, lengths)
    again = open_tokens(tmp_path, SPEC.digest())
    assert again is not None
    for found in (written, again):
        expected = rows_of(lengths)
        assert len(found) == 5
        assert found.num_tokens == sum(lengths) + 5
        assert found.rows.tolist() == [0, 2, 4, 6, 1000]
        assert found.sample_hashes == [sample_hash(ids) for ids, _, _ in expected]
        assert found.sample_hashes[0] == found.sample_hashes[4]
        assert found.offsets.tolist() == [0, 5, 6, 70, 83, 88]
        for i, (ids, mask, _) in enumerate(expected):
            assert np.array_equal(found.input_ids(i), ids)
            assert np.array_equal(found.loss_mask(i), mask)


def test_accounting_adds_up_and_rejects_are_named(tmp_path: Path) -> None:
    found = write(tmp_path, [5, 6])
    assert found.accounting == {"in": 5, "rejected": {"empty": 1, "malformed": 1}, "truncated": 1}
    assert next(found.rejects()) == {
        "file": "chats.jsonl",
        "line": 4,
        "row": 3,
        "reason": "malformed",
        "hint": "line 4 is not JSON: \u00fc",
    }


def test_an_artifact_without_rows_is_whole(tmp_path: Path) -> None:
    found = write(tmp_path, [])
    assert (len(found), found.num_tokens, found.sample_hashes, found.accounting["in"]) == (0, 0, [], 2)


def test_nothing_is_seen_before_commit_or_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), TokensWriter(tmp_path, SPEC) as writer:  # noqa: PT012
        writer.append(*rows_of([5])[0])
        assert open_tokens(tmp_path, SPEC.digest()) is None
        raise ZeroDivisionError
    assert open_tokens(tmp_path, SPEC.digest()) is None
    assert not list((tmp_path / "tmp").iterdir())


def test_the_first_of_two_writers_wins_quietly(tmp_path: Path) -> None:
    first = write(tmp_path, [5])
    assert len(write(tmp_path, [5])) == len(first)
    assert not list((tmp_path / "tmp").iterdir())


def test_arrays_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    ids, mask, _ = rows_of([5])[0]
    with TokensWriter(tmp_path, SPEC) as writer:
        for bad in ((ids[:4], mask), (ids[:0], mask[:0]), (ids[None], mask[None]), (ids, mask.astype(np.int64))):
            with pytest.raises(SampleShapeError, match="row 7"):
                writer.append(*bad, 7)


def test_a_root_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        TokensWriter(tmp_path / "none", SPEC)


def read_all(root: Path) -> None:
    found = open_tokens(root, SPEC.digest())
    assert found is not None
    list(found.rejects())
    _ = found.sample_hashes
    for i in range(len(found)):
        found.input_ids(i)
        found.loss_mask(i)


def test_damage_to_any_file_is_an_error_when_it_is_read(tmp_path: Path) -> None:
    write(tmp_path, [30, 4])
    dice = np.random.default_rng(4)
    folder = tmp_path / "tokens" / SPEC.digest()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(files) == 14
    for file in files:
        data = file.read_bytes()
        cuts = [data[:-1], b""]
        for position in (0, 8 * len(data) - 1, *dice.integers(0, 8 * len(data), 20).tolist()):
            flipped = bytearray(data)
            flipped[position // 8] ^= 1 << position % 8
            cuts.append(bytes(flipped))
        for damaged in cuts:
            file.write_bytes(damaged)
            with pytest.raises(CorruptObjectError):
                read_all(tmp_path)
        file.unlink()
        with pytest.raises(StorageError):
            read_all(tmp_path)
        file.write_bytes(data)
    read_all(tmp_path)


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(small_disk: Callable) -> None:
    disk = small_disk("size=1m")
    with pytest.raises(StoreFullError, match="no space left"), TokensWriter(disk, SPEC) as writer:  # noqa: PT012
        for row in range(100):
            writer.append(np.arange(20_000, dtype=np.int32), np.ones(20_000, np.uint8), row)
    assert open_tokens(disk, SPEC.digest()) is None
    assert not list((disk / "tmp").iterdir())


def write_weighted(root: Path, weights: np.ndarray, mask: np.ndarray) -> Tokens:
    with TokensWriter(root, SPEC) as writer:
        writer.append(np.arange(3, dtype=np.int32), mask, 0, loss_weight=weights)
        return writer.commit()


def test_weights_come_back_beside_the_mask(tmp_path: Path) -> None:
    weights, mask = np.array([0, 0.5, 1], np.float32), np.array([0, 1, 1], np.uint8)
    found = write_weighted(tmp_path, weights, mask)
    assert found.is_weighted
    assert found.loss_weight(0).tolist() == [0, 0.5, 1]
    verify_tokens(found)
    column = tmp_path / "tokens" / SPEC.digest() / "loss_weight" / "c" / "0"
    column.write_bytes(column.read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptObjectError):
        write_weighted(tmp_path, weights, mask).loss_weight(0)


def test_weights_that_do_not_fit_the_mask_are_found(tmp_path: Path) -> None:
    with pytest.raises(CorruptObjectError, match="do not fit its mask"):
        verify_tokens(write_weighted(tmp_path, np.array([0, 0, 1], np.float32), np.array([0, 1, 1], np.uint8)))


def test_without_weights_those_of_the_mask_are_given(tmp_path: Path) -> None:
    found = write(tmp_path, [5])
    assert not found.is_weighted
    assert found.loss_weight(0).tolist() == found.loss_mask(0).tolist()


def test_samples_of_split_rows_are_counted_apart(tmp_path: Path) -> None:
    with TokensWriter(tmp_path, SPEC) as writer:
        for _ in range(2):
            writer.append(np.arange(3, dtype=np.int32), np.ones(3, np.uint8), 0)
        writer.reject("chats.jsonl", 1, 0, "too_long", "sample 3 of 3", content="{}")
        writer.note_split(2)
        writer.count_rejected("not_sampled")
        found = writer.commit()
    assert found.accounting == {"in": 2, "split": 2, "rejected": {"not_sampled": 1, "too_long": 1}, "truncated": 0}
    assert [(row["reason"], row["content"]) for row in found.rejects()] == [("too_long", "{}")]
    assert found.rows.tolist() == [0, 0]
