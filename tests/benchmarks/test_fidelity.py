"""benchmarks/fidelity.py runs, and docs/fidelity.md is what its figures say."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fidelity_page import render, write_page
from record import RESULTS, ROOT

FIDELITY = [sys.executable, str(ROOT / "benchmarks" / "fidelity.py")]
KEYS = ("relative_error", "median_token_error", "cosine_distance", "apart")
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}


def test_a_model_is_measured_in_every_layer_and_twice(tiny_model, tmp_path):
    tiny_model("llama")
    arguments = ["--only", "llama", "--variants", "cpu-fp32", "--small", "--scratch", str(tmp_path)]
    ran = subprocess.run([*FIDELITY, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True, check=True)

    first, second = ran.stdout.splitlines()
    assert "cpu-fp32" in first
    assert "holds (identical)" in first
    assert second.endswith("the same bits in another process")
    row = json.loads((tmp_path / "llama.jsonl").read_text())
    assert row["layers"] == [*range(9), "final"]
    assert len(row["ratio"]) == len(row["ours"]["cosine_distance"]) == 10
    assert row["repeats"]["again"]["equal"]


def test_the_page_is_what_the_figures_say():
    page = (ROOT / "docs" / "fidelity.md").read_text()

    assert render(page, RESULTS) == page, "run: python benchmarks/fidelity.py --page"


@pytest.mark.parametrize("argument", ["--only", "--variants"])
def test_a_name_that_is_not_known_is_refused_with_those_that_are(argument):
    ran = subprocess.run([*FIDELITY, argument, "lama"], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, check=False)

    assert ran.returncode == 2
    assert "lama: not one of" in ran.stderr


def test_the_text_around_the_tables_is_kept(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: overview -->\nold\n<!-- end of table -->\nafter\n")

    write_page(page, RESULTS)

    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| model |" in text
    assert "old" not in text


def test_the_names_of_quantized_models_are_those_that_can_be_made():
    import models
    from quantized_models import QUANTIZED_MODELS, REFUSED

    right = {name: scheme for name, (_, scheme) in QUANTIZED_MODELS.items() if name not in REFUSED}
    assert list(models.QUANTIZED) == list(right)
    assert [models.scheme_of(name) for name in models.QUANTIZED] == list(right.values())


def write_figures(folder: Path, machine: str, date: str, ratio: float) -> None:
    row = {
        "model": "llama", "variant": "gpu-bf16", "exact": False, "dense": True, "second": False, "num_tokens": 10,
        "layers": [0, "final"], "equal": [True, False], "ratio": [0.0, ratio], "ratio_low": [0.0, 0.9],
        "ratio_high": [0.0, 2.0], "median_ratio": [0.0, 1.0], "repeats": {"again": {"equal": True}},
        "ours": {key: [0.0, 0.01] for key in KEYS}, "theirs": {key: [0.0, 0.01] for key in KEYS},
        "date": date, "commit": "abc",
    }  # fmt: skip
    document = {
        "benchmark": "fidelity",
        "machine": {"name": machine, "cpu": "c", "gpus": ["g"]},
        "versions": {"torch": "2"},
        "figures": {"rows": [row]},
    }
    (folder / f"fidelity-{machine}.json").write_text(json.dumps(document))


def test_the_newer_of_two_machines_has_the_cell_and_what_holds_by_chance_or_not_is_told(tmp_path):
    write_figures(tmp_path, "b", "2026-01-01", 0.9)
    write_figures(tmp_path, "a", "2026-01-02", 1.5)
    overview = "<!-- table: overview -->\n<!-- end of table -->\n"

    assert "| `llama` | 1.50 (median 1.00) |" in render(overview, tmp_path)

    write_figures(tmp_path, "b", "2026-01-03", 1.05)
    assert "| `llama` | 1.05 |" in render(overview, tmp_path)
