"""The parser of `aerie ...`: commands, flags, and an example of each."""

import argparse
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from flows import commands, deploy_commands, store_commands
from flows.argument_types import age, count, fraction, place
from flows.command_examples import EXAMPLES
from flows.compare_command import add_compare, compare
from flows.completion import add_completion, completion
from flows.doctor import add_doctor, doctor
from flows.export_commands import add_export, export
from flows.import_command import add_import, import_
from flows.plots import Form
from flows.preview import preview
from flows.settings_flags import add_settings
from flows.vocabulary import vocabulary
from storage.layout import FORMAT_VERSION

_STORE = "folder of the store, or s3://BUCKET/PREFIX"


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
    _add_no_color(parser)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_commands_of_chats(subparsers)
    _add_commands_of_stores(subparsers)
    _add_commands_of_servers(subparsers)
    add_doctor(_add_command(subparsers, "doctor", doctor))
    add_completion(_add_command(subparsers, "completion", completion), make_parser)
    demo = _add_command(subparsers, "demo", commands.demo)
    demo.add_argument("--store", type=place, default=Path("aerie-demo"), help="folder of the store (%(default)s)")
    return parser


def _add_commands_of_chats(subparsers: Any) -> None:
    extract = _add_command(subparsers, "extract", commands.extract)
    add_settings(extract)
    _add_nodes(extract)
    _add_dry_run(extract, "as aerie plan: say what would be computed, and write nothing")
    for name, command in (("plan", commands.plan), ("settings", commands.settings)):
        add_settings(_add_command(subparsers, name, command))
    _add_preview(_add_command(subparsers, "preview", preview))


def _add_commands_of_stores(subparsers: Any) -> None:
    showing = _add_command(subparsers, "show", store_commands.show)
    _add_store(showing)
    _add_plots(showing)
    add_compare(_add_command(subparsers, "compare", compare))
    _add_validate(_add_command(subparsers, "validate", store_commands.validate))
    compacting = _add_command(subparsers, "compact", store_commands.compact)
    _add_store(compacting)
    _add_dry_run(compacting, "say what would be packed and merged, in bytes, and write nothing")
    exporting = _add_command(subparsers, "export", export)
    _add_store(exporting)
    add_export(exporting)
    _add_dry_run(exporting, "say what would be written, in bytes, and write nothing")
    importing = _add_command(subparsers, "import", import_)
    add_import(importing)
    _add_dry_run(importing, "look at the files, say what would be stored, in bytes, and write nothing")
    _add_gc(_add_command(subparsers, "gc", store_commands.gc))
    _add_vocabulary(_add_command(subparsers, "vocabulary", vocabulary))


def _add_commands_of_servers(subparsers: Any) -> None:
    for name, command in (("deploy", deploy_commands.deploy), ("serve", deploy_commands.serve)):
        parser_of_settings = _add_command(subparsers, name, command)
        add_settings(parser_of_settings)
        deploy_commands.add_nightly(parser_of_settings)
    undeploy = _add_command(subparsers, "undeploy", deploy_commands.undeploy)
    undeploy.add_argument("--yes", action="store_true", help="remove it; without, nothing is changed")
    deploy_commands.add_work(_add_command(subparsers, "worker", deploy_commands.worker))
    deploy_commands.add_address(_add_command(subparsers, "server", deploy_commands.server))


def _add_command(subparsers: Any, name: str, command: Callable[..., int]) -> argparse.ArgumentParser:
    summary = (command.__doc__ or "").strip().splitlines()[0]
    examples = EXAMPLES[name]
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary,
        epilog="\n  ".join([f"example{'s' if len(examples) > 1 else ''}:", *examples]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command=command)
    parser.add_argument("--json", action="store_true", help="print the result as JSON, as the last line")
    _add_no_color(parser)
    return parser


def _add_dry_run(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--dry-run", action="store_true", help=what)


def _add_no_color(parser: argparse.ArgumentParser) -> None:
    """Add the flag before the command and behind it; what is not given must not undo the other."""
    parser.add_argument(
        "--no-color",
        action="store_true",
        default=argparse.SUPPRESS,
        help="as NO_COLOR=1, or TERM=dumb, in the environment",
    )


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-nodes", action="store_true", help="hand out parts of the work to the workers of `aerie deploy`'s pool"
    )
    parser.add_argument("--part-tokens", type=count, metavar="N", help="with it: tokens a node is given at a time")


def _add_preview(parser: argparse.ArgumentParser) -> None:
    add_settings(parser)
    parser.add_argument("--samples", type=count, default=5, metavar="N", help="how many to show (%(default)s)")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="rows to leave out at the beginning")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page of HTML instead")


def _add_vocabulary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=place, help=_STORE)
    parser.add_argument("--model", type=Path, required=True, help="the model whose tokens these are, as for extract")
    parser.add_argument("--size", type=count, required=True, metavar="N", help="tokens of the draft vocabulary")
    parser.add_argument(
        "--tokens", metavar="DIGEST", help="which tokens, by a prefix of the digest, if there are several"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write d2t-N.npy and t2d-N.npy there too")


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=place, help=_STORE)
    parser.add_argument("--secret-block", metavar="NAME", help="of Prefect, with the AWS_* variables of a bucket")


def _add_store(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument(
        "--spec", metavar="DIGEST", help="which states, by a prefix of the digest, if there are several"
    )


def _add_plots(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plots",
        type=Path,
        nargs="?",
        const=Path("plots"),
        metavar="FOLDER",
        help="draw lengths, and by layer compression, norms and channels that stand out, into files there (%(const)s)",
    )
    parser.add_argument(
        "--model",
        type=Path,
        help="with it: that of the states; how often its LM head reads the next token out of them is drawn, too",
    )
    parser.add_argument("--plot-format", choices=get_args(Form), default="png", help="of these files (%(default)s)")
    parser.add_argument(
        "--tokens", metavar="DIGEST", help="whose lengths are drawn, by a prefix of the digest, if there are several"
    )


def _add_validate(parser: argparse.ArgumentParser) -> None:
    _add_store(parser)
    parser.add_argument("--repair", action="store_true", help="set aside what is bad, so that the next run redoes it")
    parser.add_argument(
        "--fraction",
        type=fraction,
        default=1.0,
        metavar="SHARE",
        help="check this share of the samples, always the same ones (default 1.0)",
    )
    parser.add_argument("--threads", type=count, metavar="N", help="that read and decode (default: one a core)")


def _add_gc(parser: argparse.ArgumentParser) -> None:
    _add_place(parser)
    parser.add_argument("--yes", action="store_true", help="free it; without, nothing is changed")
    parser.add_argument(
        "--older-than",
        type=age,
        metavar="DAYS",
        help="take also what processes of other hosts left, where nothing has changed for so long",
    )
