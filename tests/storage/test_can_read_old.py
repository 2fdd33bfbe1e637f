"""Stores of every format version that there was are read by this code and by the page of their format."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import open_store, open_tokens
from storage.checks import check_store
from storage.collection import collect_garbage
from storage.digests import sample_hash
from storage.file_checks import check_files
from storage.float8 import quantize, split
from storage.layout import FORMAT_VERSION
from storage.objects import ObjectWriter
from storage.packs import compact

STORES = Path(__file__).parent / "stores"
VERSIONS = sorted(folder.name for folder in STORES.iterdir() if folder.is_dir() and folder.name.startswith("v"))


def load_maker(version: str) -> Any:
    """Return the script that made the store of a version: it says what must be in there."""
    spec = importlib.util.spec_from_file_location("maker", STORES / f"make_{version}.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker


@pytest.fixture(params=VERSIONS)
def maker(request: pytest.FixtureRequest) -> Any:
    made = load_maker(request.param)
    made.store = STORES / request.param
    return made


def samples_of(maker: Any) -> dict[str, int]:
    """Return the length of each sample that the store has, by name."""
    lengths = set(maker.LOOSE + maker.PACKED + maker.MERGED) - {maker.REMOVED}
    return {sample_hash(maker.make_ids(num_tokens)): num_tokens for num_tokens in lengths}


def contents(folder: Path) -> dict[Path, bytes]:
    return {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_there_is_a_store_of_each_version() -> None:
    assert [f"v{version}" for version in range(1, FORMAT_VERSION + 1)] == VERSIONS


def test_can_read_old(maker: Any) -> None:
    before = contents(maker.store)
    store = open_store(maker.store)
    assert (store.spec_digest, store.spec) == (maker.SPEC.digest(), maker.SPEC)
    samples = samples_of(maker)
    assert set(store) == set(samples)
    for name, num_tokens in samples.items():
        assert np.array_equal(store[name].input_ids, maker.make_ids(num_tokens))
        assert np.array_equal(store[name].hidden_states().view(np.uint16), maker.make_states(num_tokens))
    assert {pack.generation for pack in store.catalog.packs} == {0, 1}
    tokens = open_tokens(maker.store, maker.TOKENS_SPEC.digest())
    assert tokens is not None
    rows = (*maker.LOOSE, *maker.PACKED, *maker.MERGED, maker.LOOSE[0])
    assert tokens.sample_hashes == [sample_hash(maker.make_ids(num_tokens)) for num_tokens in rows]
    assert all(np.array_equal(tokens.loss_mask(i), maker.make_mask(n)) for i, n in enumerate(rows))
    assert tokens.accounting == {"in": 9, "rejected": {"empty": 1}, "truncated": 1}
    assert [row["reason"] for row in tokens.rejects()] == ["empty"]
    report = check_store(maker.store, store.spec_digest)
    assert (report.checked, report.findings, check_files(maker.store)) == (len(samples), [], [])
    assert contents(maker.store) == before, "reading changes nothing"


def test_the_page_reads_old(maker: Any, block_of: Callable[[str], str]) -> None:
    namespace: dict = {}
    exec(block_of("python"), namespace)  # noqa: S102 our own page
    reader = namespace["Reader"](maker.store, maker.SPEC.digest())
    samples = samples_of(maker)
    assert set(reader) == set(samples)
    for name, num_tokens in samples.items():
        ids, states = reader[name]
        assert np.array_equal(ids, maker.make_ids(num_tokens))
        assert np.array_equal(states.view(np.uint32) >> 16, maker.make_states(num_tokens))


def test_can_go_on_with_old(maker: Any, tmp_path: Path) -> None:
    path = Path(shutil.copytree(maker.store, tmp_path / "store"))
    ids, states = maker.make_ids(maker.REMOVED), maker.make_states(maker.REMOVED)
    ObjectWriter(path, maker.SPEC).write(ids, states)
    compact(path, maker.SPEC.digest())
    assert collect_garbage(path, is_dry=False).counts == {"removed": 1}
    store = open_store(path)
    assert set(store) == {*samples_of(maker), sample_hash(ids)}
    assert np.array_equal(store[sample_hash(ids)].hidden_states().view(np.uint16), states)
    assert not check_store(path, store.spec_digest).findings


def test_can_read_float8_of_before(block_of: Callable[[str], str]) -> None:
    """Their bytes are what quantizing gives now, and what is read of them is what the page says."""
    maker, path = load_maker("float8_v1"), STORES / "float8_v1"
    store, namespace = open_store(path), dict[str, Any]()
    exec(block_of("python"), namespace)  # noqa: S102 our own page
    reader = namespace["Reader"](path, maker.SPEC.digest())
    assert (store.spec, len(store)) == (maker.SPEC, 2)
    for num_tokens in (maker.LOOSE, maker.PACKED):
        name, given = sample_hash(maker.make_ids(num_tokens)), maker.make_states(num_tokens)
        values, scales = split(quantize(given))
        stored = store[name].float8_states()
        assert np.array_equal(stored.values.view(np.uint8), values.view(np.uint8))
        assert np.array_equal(stored.scales, scales)
        expected = maker.read_again(given)
        assert np.array_equal(store[name].hidden_states().view(np.uint16), expected)
        assert np.array_equal(reader[name][1].view(np.uint32) >> 16, expected)
        assert np.array_equal(store[name].input_ids, maker.make_ids(num_tokens))
    assert 0 < store.rounding_error().mean < store.rounding_error().largest < 1 / 16
    assert not check_store(path, store.spec_digest).findings


def test_the_script_makes_the_store_that_is_kept(tmp_path: Path) -> None:
    """While it is the newest version. The compressed bytes are those of the library at hand, the rest is ours."""
    load_maker(VERSIONS[-1]).main(tmp_path)
    made, kept = contents(tmp_path), contents(STORES / VERSIONS[-1])
    assert set(made) == set(kept)
    ours = [file for file in kept if file.parts[0] in {"aerie.json", "specs", "tokens", "removed"}]
    assert {file: made[file] for file in ours} == {file: kept[file] for file in ours}
