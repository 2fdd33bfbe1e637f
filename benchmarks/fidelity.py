"""How close the states of each model are to transformers, in each layout that this machine has.

python benchmarks/fidelity.py                                   all of it; figures to benchmarks/results, tables to docs
python benchmarks/fidelity.py --only llama,gemma3 --variants gpu-bf16 --jobs 8 --budget-seconds 500
python benchmarks/fidelity.py --only llama --small              a few tokens, to see that it runs; nothing is kept
python benchmarks/fidelity.py --page                            the tables anew, from all figures
python benchmarks/fidelity.py --check                           whether the tables are those of the figures
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from children import Job, Row, measure_all
from fidelity_page import check_page, write_page
from models import NAMES
from record import RESULTS, describe_machine, describe_run, read_results, write_result
from variants import VARIANTS, runnable
from verdicts import judge

NAME = "fidelity"


class Figures:
    """The rows of this machine: those that are there, and those that are measured now in their place."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._run = {key: value for key, value in describe_run().items() if key in {"date", "commit"}}
        machine = describe_machine()["name"]
        self._rows: dict[tuple[str, str], Row] = {}
        for document in read_results(NAME, folder):
            if document["machine"]["name"] == machine:
                self._rows = {(row["model"], row["variant"]): row for row in document["figures"]["rows"]}

    def keep(self, row: Row) -> None:
        """Keep a row, write all to disk and say what it is."""
        key = (row["model"], row["variant"])
        if row["second"]:
            self._rows[key]["repeats"]["process"] = row.get("process") or {"failure": row["failure"]}
        else:
            self._rows[key] = row | self._run
        write_result(NAME, {"rows": [self._rows[key] for key in sorted(self._rows, key=_order)]}, self._folder)
        print(describe_row(row), flush=True)


def describe_row(row: Row) -> str:
    """Say in one line what was measured."""
    head = f"{row['model']:<24}{row['variant']:<27}"
    if "failure" in row:
        return f"{head}FAILED: {row['failure']}"
    if row["second"]:
        return f"{head}{'the same' if row['process']['equal'] else 'other'} bits in another process"
    verdict, ours, theirs = judge(row), row["ours"]["relative_error"], row["theirs"]["relative_error"]
    holds = "holds" if verdict["holds"] else "holds by the median" if verdict["by_median"] else "DOES NOT HOLD"
    return (
        f"{head}{holds} ({verdict['rule']}): {verdict['worst']:.3g} in layer {verdict['worst_layer']}; "
        f"relative error up to {max(ours):.1e}, transformers {max(theirs):.1e}; {row['seconds']:.0f} s"
    )


def _order(key: tuple[str, str]) -> tuple[int, int]:
    return NAMES.index(key[0]), list(VARIANTS).index(key[1])


def make_jobs(arguments: argparse.Namespace, scratch: Path) -> list[Job]:
    """Return one job a model, with the variants that were asked for and that this machine can run."""
    jobs = []
    for model in arguments.only or NAMES:
        here = [variant.name for variant in runnable(model)]
        variants = tuple(name for name in arguments.variants or here if name in here)
        if variants:
            rows = scratch / f"{model}.jsonl"
            jobs.append(Job(model, variants, rows, scratch, os.getpid(), small=arguments.small))
    return jobs


def measure(arguments: argparse.Namespace) -> bool:
    """Measure what was asked for; False if time was out or anything failed."""
    deadline = time.monotonic() + arguments.budget_seconds
    failed: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory(prefix="fidelity-") as temporary:
        scratch = arguments.scratch or Path(temporary)
        figures = Figures(arguments.results or (Path(temporary) if arguments.small else RESULTS))

        def on_row(row: Row) -> None:
            figures.keep(row)
            if "failure" in row:
                failed.add((row["model"], row["variant"]))

        jobs = make_jobs(arguments, scratch)
        finished = measure_all(jobs, arguments.jobs, deadline, on_row)
        if finished and not arguments.one_process:
            finished = measure_all(_second(jobs, failed), arguments.jobs, deadline, on_row)
    if not finished:
        print(f"stopped after {arguments.budget_seconds:.0f} s; what was measured by then is kept", flush=True)
    return finished and not failed


def _second(jobs: Sequence[Job], failed: Collection[tuple[str, str]]) -> list[Job]:
    """Return the same jobs without what failed, for other processes to compare their bits with the first ones.

    On a GPU only what promises the same bits, since there the time is short.
    """
    again = []
    for job in jobs:
        variants = tuple(
            name
            for name in job.variants
            if (job.model, name) not in failed and (VARIANTS[name].deterministic or VARIANTS[name].device == "cpu")
        )
        rows = job.rows.with_suffix(".second.jsonl")
        again.extend([replace(job, variants=variants, rows=rows, second=True)] if variants else [])
    return again


def parse_arguments() -> argparse.Namespace:
    """Parse the command line; see this module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=_names(NAMES), help="models, the most important first")
    parser.add_argument("--variants", type=_names(VARIANTS), help="the default is all that this machine can run")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--budget-seconds", type=float, default=86_400, help="stop after this long")
    parser.add_argument("--small", action="store_true", help="a few tokens; nothing is kept without --results")
    parser.add_argument("--one-process", action="store_true", help="leave out the comparison of two processes")
    parser.add_argument("--results", type=Path, help="folder of the figures; the page is made without it only")
    parser.add_argument("--scratch", type=Path, help="folder of logs and states; the default is removed at the end")
    parser.add_argument("--page", action="store_true", help="only write the tables anew")
    parser.add_argument("--check", action="store_true", help="only say whether the tables are those of the figures")
    return parser.parse_args()


def _names(known: Collection[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return names

    return parse


def main() -> int:
    """Measure, or only make or check the page; 1 if anything failed or differs."""
    arguments = parse_arguments()
    if arguments.check:
        done = check_page()
        print(
            "docs/fidelity.md is what the figures say"
            if done
            else "docs/fidelity.md is not what the figures say; --page"
        )
        return 0 if done else 1
    done = arguments.page or measure(arguments)
    if not (arguments.small or arguments.results):
        write_page()
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
