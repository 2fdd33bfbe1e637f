"""`aerie export` and `aerie import` as users have them, and the flow that Prefect's pages start."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import GOOD, Finished, refusal, run_aerie, snapshot
from prefect.utilities.schema_tools.validation import validate

from flows import export_store
from flows.cli import main
from storage.dataset import HiddenStateDataset

ROWS = 10  # kept of `jobs.LINES`: two of them copies


def as_json(done: Any) -> Any:
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    return json.loads(line)


def test_a_dry_run_says_what_would_be_written_and_writes_nothing(finished: Finished, tmp_path: Path) -> None:
    before = snapshot(finished.store)
    command = ("export", finished.store, "--format", "specforge", "--to", tmp_path / "files", "--dry-run")
    document = as_json(run_aerie(*command, "--json", cwd=tmp_path))
    assert (document["rows"], document["layers"]) == (ROWS, [2, 4, 5])
    assert (document["layers_as_the_trainer_counts"], document["norm"]) == ([1, 3, 4], "after")
    assert document["tokens"] * 4 * 256 * 2 < document["write_bytes"] < document["free_bytes"]
    assert "write bytes" in run_aerie(*command, cwd=tmp_path).stdout
    assert not (tmp_path / "files").exists()
    assert snapshot(finished.store) == before


def test_an_export_and_an_import_bring_the_same_states_back(
    finished: Finished, with_server: dict[str, str], tmp_path: Path
) -> None:
    command = ("export", finished.store, "--format", "specforge", "--to", "files", "--json")
    done = run_aerie(*command, cwd=tmp_path, env=with_server)
    document = as_json(done)
    assert (document["written"], document["present"]) == (ROWS, 0)
    assert f"export: {document['rows'] and finished.result.tokens.num_tokens:,} of" in done.stderr
    model = finished.settings.model
    flags = ("--from", "specforge", "--store", "again", "--model", model, "--layer-convention", "specforge")
    imported = as_json(run_aerie("import", "files", *flags, "--layers", "1,3,4", "--json", cwd=tmp_path))
    assert (imported["files"], imported["written"]) == (ROWS, len(GOOD))
    first = HiddenStateDataset(finished.store, finished.report.tokens_digest)
    second = HiddenStateDataset(tmp_path / "again", imported["tokens_digest"])
    assert first.layers == second.layers
    masks = {bytes(name): item["loss_mask"] for name, item in zip(first.hashes, first, strict=False)}
    for name, item in zip(second.hashes, [second[i] for i in range(len(second))], strict=True):
        state = first.store[name.tobytes().hex()].hidden_states()
        assert item["hidden_states"].view(torch.int16).numpy().tobytes() == state.tobytes()
        assert torch.equal(item["loss_mask"], masks[bytes(name)])


def test_the_flow_does_the_same_from_python(finished: Finished, tmp_path: Path) -> None:
    info = export_store(finished.store, "safetensors", tmp_path / "files", layers="final", rows="0:3")
    assert (info.rows, info.written, info.norm) == (3, 3, None)
    assert len(list((tmp_path / "files").rglob("*.safetensors"))) == 3
    assert export_store(finished.store, "safetensors", tmp_path / "files", layers="final").present == 3


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--format", "speculators"),
            "layer 8, which cannot be had from the one after it; the store has 2,4,5,final: run",
        ),
        (("--format", "specforge", "--layers", "2,4"), "exactly 3 of the layers before the last, not 2 (2,4)"),
        (("--format", "specforge", "--rows", "5"), "rows are '5'; give START:STOP"),
        (("--format", "specforge", "--rows", "99:"), "are none of 10"),
        (("--format", "specforge", "--tokens", "beef"), "0 tokens artifacts begin with 'beef'"),
        (("--format", "specforge", "--spec", "beef"), "0 specs begin with 'beef'"),
    ],
)
def test_a_refusal_is_one_line(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], words: str
) -> None:
    assert main(["export", str(finished.store), "--to", str(tmp_path / "files"), *flags]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("aerie: ")
    assert words in line
    assert not (tmp_path / "files").exists()


def test_an_import_that_is_refused_is_one_line_and_leaves_no_store(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    torch.save({"input_ids": [1]}, tmp_path / "files" / "a.ckpt")
    flags = ("--from", "specforge", "--store", "store", "--model", finished.settings.model)
    line = refusal(run_aerie("import", "files", *flags, cwd=tmp_path))
    assert "a.ckpt has no tensor input_ids" in line
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("changes", "is_good"),
    [
        ({}, True),
        ({"layers": "2,L//2,L-3", "rows": "0:1000", "missing": "skip", "allow_lossy": True, "threads": 4}, True),
        ({"trainer_format": "pickle"}, False),
        ({"to": "relative"}, False),
        ({"store": "relative"}, False),
        ({"rows": "all"}, False),
        ({"layers": "nonsense"}, False),
        ({"missing": "guess"}, False),
        ({"threads": 0}, False),
    ],
    ids=str,
)
def test_the_form_takes_what_is_good(changes: dict[str, Any], is_good: bool) -> None:
    values = {"store": "/data/store", "trainer_format": "specforge", "to": "/data/files", **changes}
    schema = export_store.parameters.model_dump()
    assert (validate(values, schema) == []) is is_good
    titles = [field["title"] for field in schema["properties"].values()]
    assert titles[:3] == ["Store", "Format", "Folder"]
