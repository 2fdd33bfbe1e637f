import os
import time
from pathlib import Path
from typing import Any

import children
import psutil
import pytest
from children import Job, measure_all

# A child that measures nothing: it dies at variants that say so, and never ends at `hang`.
CHILD = """
import json, sys, time
job = json.loads(sys.argv[1])
for variant in job["variants"]:
    if variant == "raise":
        raise ValueError("so it goes")
    if variant == "exit":
        sys.exit(3)
    if variant == "hang":
        time.sleep(600)
    with open(job["rows"], "a") as rows:
        rows.write(json.dumps({"model": job["model"], "variant": variant}) + "\\n")
"""


@pytest.fixture(autouse=True)
def _script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    monkeypatch.setattr(children, "SCRIPT", script)


def job(folder: Path, model: str, *variants: str) -> Job:
    return Job(model, variants, folder / f"{model}.jsonl", folder, os.getpid())


def measured(jobs: list[Job], parallel: int = 2, seconds: float = 600) -> tuple[bool, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    return measure_all(jobs, parallel, time.monotonic() + seconds, rows.append), rows


def test_every_row_of_every_child_arrives(tmp_path):
    finished, rows = measured([job(tmp_path, "a", "x", "y"), job(tmp_path, "b", "x"), job(tmp_path, "c", "x")])

    assert finished
    assert sorted((row["model"], row["variant"]) for row in rows) == [("a", "x"), ("a", "y"), ("b", "x"), ("c", "x")]


def test_a_child_that_dies_costs_one_row_that_says_why_and_no_other(tmp_path):
    finished, rows = measured([job(tmp_path, "a", "x", "raise", "y", "exit", "z")])

    assert finished
    assert [(row["variant"], row.get("failure")) for row in rows] == [
        ("x", None),
        ("raise", "ValueError: so it goes"),
        ("y", None),
        ("exit", "the process ended with status 3"),
        ("z", None),
    ]


def test_past_the_deadline_nothing_is_begun(tmp_path):
    assert measured([job(tmp_path, "a", "x")], seconds=0) == (False, [])


def test_an_interrupt_leaves_no_child(tmp_path):
    def interrupt(row: dict[str, Any]) -> None:
        raise KeyboardInterrupt(row["variant"])

    before = psutil.Process().children()  # servers that other tests share
    with pytest.raises(KeyboardInterrupt, match="x"):
        measure_all([job(tmp_path, "a", "x", "hang")], 1, time.monotonic() + 600, interrupt)

    assert set(psutil.Process().children()) <= set(before)


def test_rows_of_an_earlier_run_in_the_same_folder_are_not_taken_for_new_ones(tmp_path):
    measured([job(tmp_path, "a", "x")])

    assert len(measured([job(tmp_path, "a", "x")])[1]) == 1
