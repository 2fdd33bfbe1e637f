"""SIGKILL at any request to object storage: what is committed is whole, the rest does not count, a rerun completes."""

import itertools
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stored_files import damage_file, list_files

from storage import TokensSpec, init_store, open_store
from storage.checks import check_store
from storage.collection import collect_garbage
from storage.digests import sample_hash
from storage.packs import compact
from storage.paths import ObjectPath
from storage.repairs import repair
from storage.tokens import TokensWriter

# Runs WORK in a process that kills itself before request number LAST, counted over all threads, or after it.
SCRIPT = """
import itertools, os, signal, sys
sys.path.insert(0, {tests!r})
from conftest import SPEC, make_sample
from storage.bucket import Bucket
from storage.checks import check_store
from storage.collection import collect_garbage
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.paths import store_path
from storage.repairs import repair

ask, count, last, is_after = Bucket._ask, itertools.count(), {last}, {is_after}
def ask_or_die(*arguments, **options):
    number = next(count)
    if number == last and not is_after:
        os.kill(os.getpid(), signal.SIGKILL)
    answer = ask(*arguments, **options)
    if number == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return answer
place, digest = store_path({place!r}), {digest!r}
writer = ObjectWriter(place, SPEC)
Bucket._ask = ask_or_die
{work}
"""
WORKS = {
    "write": "writer.write(*make_sample(60, 1))",
    "compact": "compact(place, digest)",
    "repair": "repair(place, check_store(place, digest).findings)",
    "collect": "collect_garbage(place, is_dry=False)",
}


def run(filled, work: str, last: int, *, is_after: bool) -> bool:
    """Say whether the process was killed; else it has done its work."""
    values = {"place": str(filled.path), "digest": filled.digest, "last": last, "is_after": is_after}
    script = SCRIPT.format(tests=str(Path(__file__).parent), work=WORKS[work], **values)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode != 0


def assert_sound(filled, names: set[str]) -> None:
    """All of `names` are there once at least, and nothing that is there is bad."""
    store = open_store(filled.path, filled.digest)
    assert names <= set(store)
    for name in names:
        assert store[name].hidden_states().tobytes() == filled.samples[name][1].tobytes()
    assert not check_store(filled.path, filled.digest).findings


def finish(filled) -> None:
    """What the next run does: sweep, write what is missing, compact."""
    init_store(filled.path)
    for seed, name in enumerate(filled.samples):
        if name not in open_store(filled.path):
            filled.write(len(filled.samples[name][0]), seed)
    compact(filled.path, filled.digest)
    assert_sound(filled, set(filled.samples))
    store = open_store(filled.path)
    assert set(store) == set(filled.samples)
    assert sum(len(pack) for pack in store.catalog.packs) == len(store), "each once"
    left = [name for name in list_files(filled.path) if name.startswith(("tmp/", "objects/"))]
    assert not left


def name_samples(filled, names: list[str]) -> None:
    with TokensWriter(filled.path, TokensSpec(("d" * 64,), "t" * 64, "c" * 64)) as writer:
        for row, name in enumerate(names):
            ids = filled.samples[name][0]
            writer.append(ids, np.ones(len(ids), np.uint8), row)
        writer.commit()


@pytest.fixture
def filled(make_filled: Callable, s3_place: ObjectPath) -> Any:
    return make_filled((60, 60, 60), path=s3_place)


def test_a_writer_killed_at_any_request(make_filled: Callable, s3_place: ObjectPath, sample_of: Callable) -> None:
    for last in itertools.count():
        filled = make_filled((60,), path=s3_place / str(last))
        before = set(filled.samples)
        is_killed = run(filled, "write", last, is_after=False)
        assert_sound(filled, before)
        filled.samples[sample_hash(sample_of(60, 1)[0])] = sample_of(60, 1)
        finish(filled)
        if not is_killed:
            assert last == 9, "requests of a write"
            return


@pytest.mark.parametrize("at", range(8, 72, 16))
def test_a_compaction_killed_at_any_request(filled, at: int) -> None:
    run(filled, "compact", at, is_after=at % 4 == 0)
    assert_sound(filled, set(filled.samples))
    finish(filled)


@pytest.mark.parametrize("at", range(12, 36, 12))
def test_a_repair_killed_at_any_request(filled, at: int) -> None:
    bad = next(name for name in list_files(filled.path) if name.endswith("hidden_states/c/0/0/0"))
    damage_file(filled.path / bad, 9)
    good = {name for name in filled.samples if name not in bad}
    run(filled, "repair", at, is_after=at % 2 == 0)
    init_store(filled.path)
    repair(filled.path, check_store(filled.path, filled.digest).findings)
    assert_sound(filled, good)
    finish(filled)


@pytest.mark.parametrize("at", range(15, 60, 15))
def test_a_collection_killed_at_any_request(filled, at: int) -> None:
    for seed in (3, 4):
        filled.write(60, seed)
    compact(filled.path, filled.digest)
    names = list(filled.samples)
    name_samples(filled, names[:3])
    run(filled, "collect", at, is_after=at % 4 == 0)
    assert_sound(filled, set(names[:3]))
    init_store(filled.path)
    collect_garbage(filled.path, is_dry=False)
    filled.samples = {name: filled.samples[name] for name in names[:3]}
    finish(filled)
