"""Every file of a small store, damaged in every way: what share is detected, and what share does the next run repair?

python benchmarks/corruption_matrix.py [--flips 8] [--folder FOLDER] [--results FOLDER]
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from corruptions import Verdict, damage_each_file, prepare
from record import RESULTS, write_result


def main() -> int:
    """Run the matrix, write the figures, and tell whether all was detected and repaired."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flips", type=int, default=8, help="bits flipped in each file, one at a time")
    parser.add_argument("--folder", type=Path, help="where the stores are made (a temporary folder)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures go (%(default)s)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aerie-corruptions-", dir=arguments.folder) as folder:
        template = Path(folder) / "template"
        prepare(template)
        verdicts = list(damage_each_file(template, Path(folder), arguments.flips))
    for verdict in verdicts:
        if not (verdict.is_detected and verdict.is_repaired):
            print(verdict)
    figures = summarize(verdicts)
    write_result("corruption-matrix", figures, arguments.results)
    print({name: figures[name] for name in ("files", "damages", "detected", "repaired")})
    return 0 if figures["detected"] == figures["repaired"] == figures["damages"] else 1


def summarize(verdicts: list[Verdict]) -> dict[str, Any]:
    """Count what was detected and repaired, over all and by file and kind of damage."""
    by_part: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        counts = by_part.setdefault(verdict.part, Counter())
        counts["damages"] += 1
        counts["detected"] += verdict.is_detected
        counts["repaired"] += verdict.is_repaired
    kinds = Counter(verdict.damage.split()[0] for verdict in verdicts)
    return {
        "files": len(by_part),
        "damages": len(verdicts),
        "detected": sum(verdict.is_detected for verdict in verdicts),
        "repaired": sum(verdict.is_repaired for verdict in verdicts),
        "by_damage": dict(kinds),
        "by_part": {part: dict(counts) for part, counts in by_part.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
