"""The command line `aerie`: parse, call, print.

Exit codes: 0 done; 1 refused or failed, with one line that says why; 2 wrong usage; 130 interrupted.
"""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from flows import commands, deploy_commands, store_commands
from flows.compare_command import add_compare, compare
from flows.doctor import add_doctor, doctor
from flows.errors import ReportError, SettingsError
from flows.export_commands import add_export, export
from flows.import_command import add_import, import_
from flows.prefect_defaults import quiet_console
from flows.preview import preview
from flows.settings_flags import add_settings
from flows.vocabulary import vocabulary
from storage.errors import StorageError
from storage.layout import FORMAT_VERSION
from storage.paths import StorePath, store_path
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
    try:
        return int(arguments.command(arguments))
    except (ReportError, SettingsError, *KNOWN_ERRORS) as error:
        print(f"aerie: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("aerie: interrupted; what was computed is kept, the same command continues", file=sys.stderr)
        return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    """A parser that says so when nobody reads its help; argparse's own is silent where that is over 8 KiB."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message:
            (file or sys.stderr).write(message)


def make_parser() -> argparse.ArgumentParser:
    """Build the parser; the flags of settings come from `Settings`, so that there is one list of them."""
    parser = _Parser(
        prog="aerie",
        description="Turn chats and a language model into a store of hidden states.",
        epilog="Settings also come from AERIE_* variables, .env and aerie.toml; `aerie settings` shows which won.",
    )
    version = f"aerie {importlib.metadata.version('aerie-hidden-states')} (store format {FORMAT_VERSION})"
    parser.add_argument("--version", action="version", version=version)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    extract = _add_command(subparsers, "extract", commands.extract)
    add_settings(extract)
    _add_nodes(extract)
    for name, command in (("plan", commands.plan), ("settings", commands.settings)):
        add_settings(_add_command(subparsers, name, command))
    _add_preview(_add_command(subparsers, "preview", preview))
    for name, command in (("show", store_commands.show), ("compact", store_commands.compact)):
        _add_store(_add_command(subparsers, name, command))
    add_compare(_add_command(subparsers, "compare", compare), _store)
    _add_validate(_add_command(subparsers, "validate", store_commands.validate))
    exporting = _add_command(subparsers, "export", export)
    _add_store(exporting)
    add_export(exporting, _count)
    add_import(_add_command(subparsers, "import", import_), _store, _count)
    _add_gc(_add_command(subparsers, "gc", store_commands.gc))
    _add_vocabulary(_add_command(subparsers, "vocabulary", vocabulary))
    for name, command in (("deploy", deploy_commands.deploy), ("serve", deploy_commands.serve)):
        parser_of_settings = _add_command(subparsers, name, command)
        add_settings(parser_of_settings)
        deploy_commands.add_nightly(parser_of_settings)
    _add_command(subparsers, "undeploy", deploy_commands.undeploy)
    deploy_commands.add_work(_add_command(subparsers, "worker", deploy_commands.worker))
    deploy_commands.add_address(_add_command(subparsers, "server", deploy_commands.server))
    add_doctor(_add_command(subparsers, "doctor", doctor), _store)
    demo = _add_command(subparsers, "demo", commands.demo)
    demo.add_argument("--store", type=_store, default=Path("aerie-demo"), help="folder of the store (%(default)s)")
    return parser


def _add_command(subparsers: Any, name: str, command: Callable[..., int]) -> argparse.ArgumentParser:
    summary = (command.__doc__ or "").strip().splitlines()[0]
    parser: argparse.ArgumentParser = subparsers.add_parser(name, help=summary, description=summary, allow_abbrev=False)
    parser.set_defaults(command=command)
    parser.add_argument("--json", action="store_true", help="print the result as JSON, as the last line")
    return parser


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-nodes", action="store_true", help="hand out parts of the work to the workers of `aerie deploy`'s pool"
    )
    parser.add_argument("--part-tokens", type=_count, metavar="N", help="with it: tokens a node is given at a time")


def _add_preview(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--samples", type=_count, default=5, metavar="N", help="how many to show (%(default)s)")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="rows to leave out at the beginning")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page of HTML instead")


def _add_vocabulary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=_store, help="folder of the store, or s3://BUCKET/PREFIX")
    parser.add_argument("--model", type=Path, required=True, help="the model whose tokens these are, as for extract")
    parser.add_argument("--size", type=_count, required=True, metavar="N", help="tokens of the draft vocabulary")
    parser.add_argument(
        "--tokens", metavar="DIGEST", help="which tokens, by a prefix of the digest, if there are several"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write d2t-N.npy and t2d-N.npy there too")


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=_store, help="folder of the store, or s3://BUCKET/PREFIX")
    parser.add_argument("--secret-block", metavar="NAME", help="of Prefect, with the AWS_* variables of a bucket")


def _add_store(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument(
        "--spec", metavar="DIGEST", help="which states, by a prefix of the digest, if there are several"
    )


def _add_validate(parser: argparse.ArgumentParser) -> None:
    _add_store(parser)
    parser.add_argument("--repair", action="store_true", help="set aside what is bad, so that the next run redoes it")
    parser.add_argument(
        "--fraction",
        type=_fraction,
        default=1.0,
        metavar="SHARE",
        help="check this share of the samples, always the same ones (default 1.0)",
    )
    parser.add_argument("--threads", type=_count, metavar="N", help="that read and decode (default: one a core)")


def _add_gc(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument("--yes", action="store_true", help="free it; without, nothing is changed")
    parser.add_argument(
        "--older-than",
        type=_age,
        metavar="DAYS",
        help="take also what processes of other hosts left, where nothing has changed for so long",
    )


def _store(text: str) -> StorePath:
    try:
        return store_path(text)
    except StorageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def _age(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0 and at most 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
