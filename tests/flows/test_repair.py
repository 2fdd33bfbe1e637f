"""A damaged store, repaired and run again, is as it was: the run computes exactly what was damaged."""

import shutil
from pathlib import Path

import numpy as np
from jobs import Finished

from flows import extract_hidden_states
from flows.maintenance import collect_garbage, validate_store
from storage.findings import Finding
from storage.packs import compact
from storage.repairs import repair
from storage.store import open_store


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def make_packed_but_one(finished: Finished, store: Path) -> str:
    """Copy the store and pack it but for one sample, whose name is returned."""
    shutil.copytree(finished.store, store)
    digest = finished.report.spec_digest
    compact(store, digest)
    (pack,) = open_store(store).catalog.packs
    name = pack.name(len(pack) - 1)
    repair(store, [Finding(name, "pack", "checksum", "", pack.pack_id, digest)])
    place = Path("objects") / digest / name[:2] / name
    shutil.copytree(finished.store / place, store / place)
    return name


def test_a_run_after_a_repair_computes_exactly_what_was_damaged(finished: Finished, tmp_path: Path) -> None:
    """A loose sample, a packed one, the tokens artifact, the header."""
    store = tmp_path / "store"
    loose = make_packed_but_one(finished, store)
    before = open_store(store)
    packed = before.catalog.packs[0].name(0)
    states = {name: sample.hidden_states() for name, sample in before.items()}
    flip(next(store.glob(f"objects/*/*/{loose}/hidden_states/c/0/0/0")), 100)
    flip(before.catalog.packs[0].folder / "hidden_states/c/0/0/0", 100)
    flip(next(store.glob("tokens/*/offsets/c/0")), 5)
    flip(store / "aerie.json", 5)

    report = validate_store(store, repair=True)
    assert {finding.where for finding in report.findings} == {"header", "tokens", "loose", "pack"}
    assert {finding.sample_hash for finding in report.findings} == {None, loose, packed}
    rows = extract_hidden_states(finished.settings_with(store=store)).report.rows
    assert (rows["done"], rows["reused"]) == (2, len(states) - 2)

    assert not validate_store(store).findings
    after = open_store(store)
    assert set(after) == set(states)
    for name, values in states.items():
        assert np.array_equal(after[name].hidden_states().view(np.uint16), values.view(np.uint16)), name
    garbage = collect_garbage(store, dry_run=False)
    assert garbage.counts["removed"] == 2
    assert garbage.counts["quarantine"] == 2
    assert set(open_store(store)) == set(states)
