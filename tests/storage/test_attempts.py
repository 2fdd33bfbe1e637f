"""Keys of attempts: which belong to which, and which attempts lack what commits them."""

import re

import pytest

from storage.attempts import GROUP, LOOSE, PLACES, attempt_of, is_attempt, new_attempt, unfinished

DIGEST, OTHER = "a" * 64, "b" * 64
ONE, TWO = "0" * 32, "1" * 32


def test_attempts_have_names_of_their_own() -> None:
    names = {new_attempt() for _ in range(100)}
    assert len(names) == 100
    assert all(map(is_attempt, names))
    assert not any(map(is_attempt, ("hidden_states", "0" * 31, "0" * 33, "G" * 32, DIGEST)))


@pytest.mark.parametrize(
    ("key", "attempt"),
    [
        (f"packs/{DIGEST}/{OTHER}/{ONE}/zarr.json", f"packs/{DIGEST}/{OTHER}/{ONE}"),
        (f"{OTHER}/{ONE}/hidden_states/c/0/0/0", f"{OTHER}/{ONE}"),
        (f"{ONE}/hidden_states/zarr.json", ONE),
        (f"packs/{DIGEST}/{OTHER}/zarr.json", None),
        (f"packs/{DIGEST}/{OTHER}/{ONE}", None),
    ],
)
def test_a_key_belongs_to_an_attempt(key: str, attempt: str | None) -> None:
    assert attempt_of(key) == attempt


def test_an_attempt_without_its_document_is_unfinished() -> None:
    keys = [
        f"{DIGEST}/{ONE}/hidden_states/zarr.json",
        f"{DIGEST}/{ONE}/zarr.json",
        f"{DIGEST}/{TWO}/hidden_states/zarr.json",
        f"{OTHER}/{ONE}/input_ids/c/0",
        f"{OTHER}/hidden_states/c/0",
    ]
    assert unfinished(sorted(keys)) == [f"{DIGEST}/{TWO}", f"{OTHER}/{ONE}"]


@pytest.mark.parametrize("attempt", ["", f"/{ONE}"])
def test_documents_of_groups_are_known(attempt: str) -> None:
    assert GROUP.fullmatch(f"{DIGEST}{attempt}/zarr.json")[1] == f"{DIGEST}{attempt}"
    assert LOOSE.fullmatch(f"aa/{DIGEST}{attempt}/zarr.json")[1] == DIGEST
    for place in (
        f"objects/{OTHER}/aa/{DIGEST}",
        f"packs/{OTHER}/{DIGEST}",
        f"tokens/{DIGEST}",
        f"draft_vocabularies/{DIGEST}",
    ):
        assert PLACES.fullmatch(f"{place}{attempt}/zarr.json")
        assert not PLACES.fullmatch(f"{place}{attempt}/hidden_states/zarr.json")
        assert not PLACES.fullmatch(f"quarantine/{place}{attempt}/zarr.json")


def test_arrays_are_no_groups() -> None:
    patterns: tuple[re.Pattern[str], ...] = (GROUP, LOOSE, PLACES)
    assert not any(pattern.fullmatch(f"aa/{DIGEST}/hidden_states/zarr.json") for pattern in patterns)
