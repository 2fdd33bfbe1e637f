import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import StateSpec, TokensSpec
from storage.digests import (
    CLOCK_TICK_NS,
    HASH_CHUNK_BYTES,
    canonical_json,
    file_digest,
    file_digests,
    sample_hash,
    sha256_hex,
)
from storage.errors import SpecError
from storage.hashes import hashes_of
from storage.pack_index import pack_id_of


@pytest.fixture
def vectors(block_of: Callable[[str], str]) -> dict:
    return json.loads(block_of("json"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "aerie" / "digests"


def wait_a_tick(path: Path) -> None:
    """Wait until the file is older than the clock's resolution, without which its digest is not remembered."""
    time.sleep(2 * CLOCK_TICK_NS / 1e9)
    assert path.exists()


def test_names_are_those_of_the_format_page(vectors: dict) -> None:
    for vector in vectors["sample_hash"]:
        assert sample_hash(np.array(vector["input_ids"], np.int32)) == vector["digest"]
    assert StateSpec.from_json(vectors["spec_digest"]["spec"]).digest() == vectors["spec_digest"]["digest"]
    tokens = vectors["tokens_digest"]
    assert TokensSpec(**{**tokens["spec"], "data": tuple(tokens["spec"]["data"])}).digest() == tokens["digest"]
    pack = vectors["pack_id"]
    for generation in (0, 2):
        found = pack_id_of(pack["spec_digest"], hashes_of(pack["sample_hashes"]), generation)
        assert found == pack[f"digest_of_generation_{generation}"]


def test_sample_hash_ignores_memory_layout_and_refuses_other_dtypes() -> None:
    ids = np.arange(20, dtype=np.int32)
    assert sample_hash(ids[::2]) == sample_hash(ids[::2].copy())
    with pytest.raises(SpecError, match="int64"):
        sample_hash(ids.astype(np.int64))


@settings(deadline=None)  # two busy cores
@given(
    st.dictionaries(
        st.text(), st.one_of(st.integers(), st.text(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False))
    )
)
def test_canonical_json_is_one_text_whatever_the_order(value: dict) -> None:
    text = canonical_json(value)
    assert text == canonical_json(dict(reversed(value.items())))
    assert json.loads(text) == value
    assert text.isascii()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": {1, 2}}, b"x"])
def test_what_has_no_canonical_json_is_refused(value: object) -> None:
    with pytest.raises(SpecError):
        canonical_json(value)


def test_file_digest_is_remembered_until_the_file_changes(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"one")
    wait_a_tick(file)
    assert file_digest(file) == sha256_hex(b"one")
    (entry,) = cache.iterdir()
    entry.write_text("e" * 64)
    assert file_digest(file) == "e" * 64, "the remembered digest is used"
    stat = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert file_digest(file) == sha256_hex(b"two"), "same size and mtime, another ctime"


def test_a_file_just_written_is_not_remembered(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"one")
    assert file_digest(file) == sha256_hex(b"one")
    assert not cache.exists()


@pytest.mark.parametrize("damage", [b"", b"not a digest", b"\xff\xfe", b"E" * 64])
def test_a_broken_cache_is_ignored(tmp_path: Path, cache: Path, damage: bytes) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"one")
    wait_a_tick(file)
    file_digest(file)
    (entry,) = cache.iterdir()
    entry.write_bytes(damage)
    assert file_digest(file) == sha256_hex(b"one")


def test_an_unwritable_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "data"
    file.write_bytes(b"one")
    wait_a_tick(file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert file_digest(file) == sha256_hex(b"one")


class TestManyFiles:
    @pytest.fixture
    def files(self, tmp_path: Path, cache: Path) -> list[Path]:
        """Return files of a few chunks each; they are old enough to be remembered."""
        assert not cache.exists()
        files = [tmp_path / f"{number}" for number in range(5)]
        for number, file in enumerate(files):
            file.write_bytes(bytes([number]) * (number * HASH_CHUNK_BYTES + number))
        wait_a_tick(files[-1])
        return files

    def test_their_digests_are_those_of_each_alone(self, files: list[Path]) -> None:
        assert file_digests(files) == [sha256_hex(file.read_bytes()) for file in files]
        assert file_digests([]) == []

    def test_what_was_read_is_told_and_what_is_remembered_is_not(self, files: list[Path]) -> None:
        told: list[tuple[int, int]] = []
        size = sum(file.stat().st_size for file in files)
        first = file_digests(files, lambda done, total: told.append((done, total)))
        assert told[-1] == (size, size)
        assert told == sorted(told)
        told.clear()
        assert file_digests(files, lambda done, total: told.append((done, total))) == first
        assert told == []
        files[3].write_bytes(b"new")
        file_digests(files, lambda done, total: told.append((done, total)))
        assert told[-1] == (3, 3)

    def test_a_file_that_cannot_be_read_is_named(self, files: list[Path]) -> None:
        files[2].unlink()
        with pytest.raises(FileNotFoundError, match=str(files[2])):
            file_digests(files)

    def test_an_interrupt_ends_it_without_reading_the_rest(self, tmp_path: Path) -> None:
        """A sparse file that would take minutes; were it read to its end, the test would run into its timeout."""
        with (tmp_path / "huge").open("wb") as file:
            file.truncate(1 << 40)

        def interrupt(_done: int, _total: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            file_digests([tmp_path / "huge"], interrupt)
