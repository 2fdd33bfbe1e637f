"""What the commands print: results on stdout, progress on stderr."""

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from flows.progress import BarProgress, LineProgress, format_bytes, showing


def print_json(document: Any) -> None:
    """Print a result as one line of JSON."""
    print(json.dumps(document))


def print_document(title: str, document: dict[str, Any], *, as_json: bool) -> None:
    """Print a result: one line of JSON, or a table for people."""
    if as_json:
        print_json(document)
    else:
        print_pairs(title, [(name.replace("_", " "), _text(name, value)) for name, value in document.items()])


def print_pairs(title: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Print pairs of label and text as a table."""
    table = Table(title=title, title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, text in pairs:
        table.add_row(label, text)
    stdout_console().print(table)


def _text(name: str, value: Any) -> str:
    """Write one value of a document for people: bytes with units, counts with commas, lists with commas."""
    if value is None:
        return "-"
    if name.endswith("_bytes") or "_bytes_" in name:
        return format_bytes(value)
    if isinstance(value, bool | str | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    items = [f"{key} {count}" for key, count in value.items()] if isinstance(value, dict) else map(str, value)
    return ", ".join(items) or "-"


@contextlib.contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Show progress on stderr: bars on a terminal, lines elsewhere."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        with showing(LineProgress(print_line)):
            yield
        return
    with BarProgress(console) as bars, showing(bars):
        yield


def stdout_console() -> Console:
    """Return a console that never wraps a digest or a path where no person looks at the width."""
    return make_console(width=None if sys.stdout.isatty() else 200)


def make_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that takes texts as they are, and is in colour on a terminal of a user who wants it.

    Args:
        stderr: write there, instead of to stdout.
        width: in characters; by default that of the terminal.
    """
    wants_color = not os.environ.get("NO_COLOR")
    return Console(
        stderr=stderr,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        color_system="auto" if wants_color else None,
    )


def print_line(text: str) -> None:
    """Print a line of progress."""
    print(text, file=sys.stderr, flush=True)
