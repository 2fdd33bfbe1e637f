"""Any damage to any file of a store is detected, and the next run makes it good."""

import subprocess
import sys
from pathlib import Path

from record import read_results

MATRIX = Path(__file__).parents[2] / "benchmarks" / "corruption_matrix.py"


def test_every_damage_to_every_file_is_detected_and_repaired(tmp_path: Path) -> None:
    """Loose objects, packs, removals, the tokens artifact, the spec, the header; more flipped bits in the benchmark."""
    results = tmp_path / "results"
    command = [sys.executable, str(MATRIX), "--flips", "1", "--folder", str(tmp_path), "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (document,) = read_results("corruption-matrix", results)
    figures = document["figures"]
    assert figures["damages"] == figures["detected"] == figures["repaired"] > 200
    assert set(figures["by_damage"]) == {"flipped", "cut", "emptied", "removed"}
    kinds = {part.split("/")[0] for part in figures["by_part"]}
    assert kinds == {"aerie.json", "objects", "packs", "removed", "specs", "tokens"}
