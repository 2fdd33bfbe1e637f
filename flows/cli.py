"""The command line `aerie`: parse, call, print.

Exit codes: 0 done; 1 refused or failed, with one line that says why; 2 wrong usage; 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from flows.errors import ReportError, SettingsError
from flows.parser import make_parser
from flows.prefect_defaults import quiet_console
from tasks.remote_errors import KNOWN_ERRORS

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()  # at exit nobody would handle a reader that has gone
    except BrokenPipeError:
        # Whoever read our output has gone: there is nobody to complain to, at exit either.
        _close_output(sys.stdout, sys.stderr)
        return 1
    except OSError as error:  # such as output to a full disk; those of stores and data have names of their own
        print(f"aerie: {error}", file=sys.stderr)
        _close_output(sys.stdout)
        return 1


def _close_output(*streams: TextIO) -> None:
    """Let what is still buffered go nowhere, where Python would complain of it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream.fileno())


def _run(argv: Sequence[str] | None) -> int:
    quiet_console()
    arguments = make_parser().parse_args(argv)
    _choose_color(arguments)
    try:
        return int(arguments.command(arguments))
    except (ReportError, SettingsError, *KNOWN_ERRORS) as error:
        print(f"aerie: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("aerie: interrupted; what was computed is kept, the same command continues", file=sys.stderr)
        return INTERRUPTED


def _choose_color(arguments: argparse.Namespace) -> None:
    """Say by the environment, which what we start sees too, that there is to be no colour."""
    if "no_color" in arguments or os.environ.get("TERM") == "dumb":
        os.environ["NO_COLOR"] = "1"
    if os.environ.get("NO_COLOR"):
        os.environ.setdefault("PREFECT_LOGGING_COLORS", "false")


if __name__ == "__main__":
    sys.exit(main())
