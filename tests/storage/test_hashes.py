"""Sample hashes as arrays behave as sorted lists and dicts of names do."""

import numpy as np
import pytest

from storage import hashes
from storage.digests import canonical_json, sha256_hex
from storage.errors import SpecError
from storage.hashes import Hashes, HashIndex, distinct, hashes_of, is_ascending, names_of, order_of
from storage.pack_index import pack_id_of


def make_hashes(count: int, *, crowded: bool = False, seed: int = 0) -> Hashes:
    """Return random hashes; crowded ones agree in their first eight bytes with many others, and some come twice."""
    dice = np.random.default_rng(seed)
    made = dice.integers(0, 256, (count, 32), np.uint8)
    if crowded:
        made[:, :8] = made[:, :8] % 2 * 128 * (np.arange(8) == 7)
        made[:, 8:31] = 255
        made[:, 31] %= 64
    return made


def ascending(found: Hashes) -> Hashes:
    return hashes_of(sorted(set(names_of(found))))


@pytest.mark.parametrize("count", [0, 1, 2, 1000])
@pytest.mark.parametrize("crowded", [False, True])
def test_order_and_distinct_are_those_of_the_names(count: int, crowded: bool) -> None:
    found = make_hashes(count, crowded=crowded)
    names = names_of(found)
    assert order_of(found).tolist() == sorted(range(count), key=lambda i: (names[i], i))
    assert distinct(found).tolist() == [i for i, name in enumerate(names) if name not in names[:i]]


@pytest.mark.parametrize("crowded", [False, True])
def test_every_hash_is_found_and_no_other(crowded: bool) -> None:
    known = ascending(make_hashes(500, crowded=crowded))
    wanted = np.concatenate([known[::-1], make_hashes(500, crowded=crowded, seed=1), known[:1] ^ 255])
    index = HashIndex(known)
    names = names_of(known)
    expected = [names.index(name) if name in names else -1 for name in names_of(wanted)]
    assert index.find(wanted).tolist() == expected
    assert [index.find_one(name) for name in names_of(wanted)] == expected
    assert -1 in expected


def test_nothing_is_found_in_an_empty_index() -> None:
    index = HashIndex(make_hashes(0))
    assert index.find(make_hashes(3)).tolist() == [-1, -1, -1]
    assert index.find_one("f" * 64) == -1
    assert index.find(make_hashes(0)).tolist() == []


@pytest.mark.parametrize("crowded", [False, True])
def test_ascending_means_no_two_out_of_order_and_none_twice(crowded: bool) -> None:
    found = ascending(make_hashes(100, crowded=crowded))
    assert is_ascending(found)
    assert is_ascending(found[:1])
    assert is_ascending(found[:0])
    for at in range(len(found) - 1):
        swapped, twice = found.copy(), found.copy()
        swapped[[at, at + 1]] = swapped[[at + 1, at]]
        twice[at] = twice[at + 1]
        assert not is_ascending(swapped)
        assert not is_ascending(twice)


@pytest.mark.parametrize("wrong", ["", "ab", "A" * 64, " " + "a" * 63, "a" * 65, "g" * 64, "a" * 32])
def test_what_is_no_hash_is_named(wrong: str) -> None:
    with pytest.raises(SpecError, match=f"'{wrong}' is no sample hash"):
        hashes_of(["0" * 64, wrong, "a" * 32])


def test_a_pack_is_named_by_the_canonical_json_of_its_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "PIECE", 3)
    for count in (1, 3, 7):
        found = ascending(make_hashes(count))
        names = names_of(found)
        assert pack_id_of("d" * 64, found) == sha256_hex(canonical_json(["d" * 64, names]))
        assert pack_id_of("d" * 64, found, 3) == sha256_hex(canonical_json(["d" * 64, names, 3]))
        assert hashes_of(names).tobytes() == found.tobytes()
        with pytest.raises(SpecError, match="'x' is no sample hash"):
            hashes_of([*names, "x"])
