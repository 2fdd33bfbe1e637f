"""`aerie compare`: two runs beside each other."""

import argparse
import json
from collections.abc import Iterable
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from flows.argument_types import place
from flows.comparison import Comparison, Pair, compare_reports
from flows.errors import ReportError
from flows.printing import print_json, stdout_console
from flows.progress import format_bytes
from flows.run_reports import find_run, is_store, last_runs, read_report
from flows.secret_block import with_secrets
from storage.digests import is_digest
from storage.paths import StorePath, store_path

_DIGEST_LENGTH = 12
_SAME = "all the same"
_UNKNOWN = "not in a report of an older version"


@with_secrets
def compare(arguments: argparse.Namespace) -> int:
    """Show two runs beside each other: what was asked of them, and what they came to."""
    first, second = (read_report(folder) for folder in _choose(arguments.place, arguments.runs))
    compared = compare_reports(first, second)
    if arguments.json:
        print_json(compared.as_json())
    else:
        stdout_console().print(_table(compared))
    return 0


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `aerie compare`."""
    parser.add_argument("place", type=place, metavar="STORE", help="folder of the store, or s3://BUCKET/PREFIX")
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="two runs, by the beginning of their ids or of the six letters at the end; one: with the last; none: the "
        "last two. Runs of two stores: give their two folders, and no store",
    )
    parser.add_argument("--secret-block", metavar="NAME", help="of Prefect, with the AWS_* variables of a bucket")


def _choose(place: StorePath, runs: list[str]) -> list[StorePath]:
    """Return the folders of the two runs that are meant.

    Raises:
        ReportError: it is not two.
        StorageError: `place` is neither a store of this version nor one of two folders.
    """
    if not is_store(place) and len(runs) == 1:
        return [place, store_path(runs[0])]
    if len(runs) > 2:  # noqa: PLR2004 - two are compared
        raise ReportError(f"{len(runs)} runs were given; give two")
    if not runs:
        return last_runs(place, 2)
    chosen = [find_run(place, run) for run in runs]
    return chosen if len(chosen) == 2 else [*chosen, *last_runs(place, 1)]  # noqa: PLR2004 - as above


def _table(compared: Comparison) -> Table:
    heading = compared.runs[0]
    columns = [Column(run, overflow="fold") for run in (heading.first, heading.second)]
    table = Table("", *columns, Column("change", justify="right"), box=None, header_style="bold")
    _add(table, "runs", [pair for pair in compared.runs if pair.name != "run" and _says(pair)])
    for name, pairs in compared.asked.items():
        _add(table, name, pairs, _UNKNOWN if pairs is None else _SAME)
    for name, pairs in compared.figures.items():
        _add(table, name, [pair for pair in pairs if _says(pair)], "none")
    return table


def _says(pair: Pair) -> bool:
    """Say whether there is anything to see: zeros and blanks of both runs are left to --json."""
    return bool(pair.first or pair.second)


def _add(table: Table, title: str, pairs: Iterable[Pair] | None, empty: str = "") -> None:
    rows = list(pairs or ())
    table.add_row(Text(title, "bold"), Text("" if rows else empty, "dim"))
    for pair in rows:
        cells = (Text(_text(value, pair.unit)) for value in (pair.first, pair.second))
        table.add_row(Text(f"  {pair.name}"), *cells, Text(_change(pair), "cyan"))


def _text(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value[:_DIGEST_LENGTH] if is_digest(value) else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _number(value, unit)
    return ", ".join(map(str, value)) if isinstance(value, list) else json.dumps(value)


def _number(value: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(value)
    if isinstance(value, int):
        return f"{value:,}"
    number = f"{value:.2f}" if unit == "ratio" else f"{value:,.1f}" if unit else f"{value}"
    return f"{number} {unit if unit in ('tokens/s', 's') else ''}".strip()


def _change(pair: Pair) -> str:
    """Say by how much a figure changed: numbers from nothing have no share."""
    both = (pair.first, pair.second)
    if not pair.unit or not pair.differs or any(value is None or value == 0 for value in both):
        return ""
    return f"{100 * (pair.second / pair.first - 1):+.1f} %"
