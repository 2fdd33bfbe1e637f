"""SIGKILL at hundreds of random moments of every kind of work on a store: is anything lost, twice there, or invalid?

python benchmarks/crash_matrix.py [--runs 360] [--seed 0] [--folder FOLDER] [--results FOLDER]
"""

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from crash_scenarios import SCENARIOS
from crashes import MOMENTS, Crashes, Outcome
from record import RESULTS, write_result


def main() -> int:
    """Run the matrix, write the figures after each round, and tell whether all was right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=360, help="that were killed, over all kinds of work")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the stores are made (a temporary folder)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the figures go (%(default)s)")
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="aerie-crashes-", dir=arguments.folder) as folder:
        crashes = Crashes(Path(folder), arguments.seed)
        while sum(outcome.was_killed for outcome in outcomes) < arguments.runs:
            for scenario in SCENARIOS:
                outcomes += [crashes.run(scenario, moment) for moment in MOMENTS]
            write_result("crash-matrix", summarize(outcomes), arguments.results)
            print(f"{sum(outcome.was_killed for outcome in outcomes)} killed", file=sys.stderr, flush=True)
    for outcome in outcomes:
        if not outcome.is_right:
            print(outcome)
    print(summarize(outcomes))
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


def summarize(outcomes: list[Outcome]) -> dict[str, Any]:
    """Count the runs that were killed and what was wrong, by kind of work and of moment."""
    killed = [outcome for outcome in outcomes if outcome.was_killed]
    return {
        "killed": len(killed),
        "ended_before": len(outcomes) - len(killed),
        "lost": sum(len(outcome.lost) for outcome in killed),
        "duplicate": sum(outcome.duplicate for outcome in killed),
        "invalid": sum(len(outcome.invalid) for outcome in killed),
        "extra": sum(len(outcome.extra) for outcome in killed),
        "leftover": sum(outcome.leftover for outcome in killed),
        "by_work": {
            scenario: dict(Counter(outcome.moment for outcome in killed if outcome.scenario == scenario))
            for scenario in SCENARIOS
        },
        "places": len({outcome.place for outcome in killed if outcome.place}),
    }


if __name__ == "__main__":
    sys.exit(main())
