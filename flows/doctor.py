"""`aerie doctor`: whether this machine can do the work, and what to do about it."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table
from rich.text import Text

from flows.argument_types import place
from flows.diagnosis import Check, as_json, count_verdict, failed, passed
from flows.errors import SettingsError
from flows.gpu_checks import check_gpus
from flows.host_checks import check_host
from flows.package_checks import check_packages, torch_cuda
from flows.printing import print_json, stdout_console
from flows.progress import format_count
from flows.secret_block import with_secrets
from flows.server_checks import check_prefect
from flows.settings import explain_settings
from flows.store_checks import check_store
from storage.paths import StorePath
from tasks.engine.errors import DeviceError
from tasks.engine.gpus import visible_gpus

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


@with_secrets
def doctor(arguments: argparse.Namespace) -> int:
    """Check that this machine can do the work: packages, GPUs, memory, disk, Prefect; say what to do where not."""
    checks = list(_examine(arguments.store, writes=not arguments.no_write))
    if arguments.json:
        print_json(as_json(checks))
    else:
        _print(checks)
    return 1 if count_verdict(checks, "fail") else 0


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `aerie doctor`."""
    parser.add_argument(
        "store", nargs="?", type=place, help="where the store is, or is to be (default: as set, else this folder)"
    )
    parser.add_argument(
        "--no-write", action="store_true", help="do not measure the disk, by 256 MB that are gone again"
    )
    parser.add_argument("--secret-block", metavar="NAME", help="of Prefect, with the AWS_* variables of a bucket")


def _examine(store: StorePath | None, *, writes: bool) -> Iterator[Check]:
    yield from check_host()
    num_gpus = _count_gpus()
    yield from check_packages(has_gpu=num_gpus > 0)
    yield from check_gpus(torch_cuda())
    known, check = _read_settings()
    yield check
    named = store or known
    yield from check_store(named or Path(), num_gpus, is_named=named is not None, writes=writes)
    yield from check_prefect()


def _count_gpus() -> int:
    try:
        return len(visible_gpus())
    except DeviceError:  # check_gpus says so
        return 0


def _read_settings() -> tuple[StorePath | None, Check]:
    """Return the store that the settings name, and what is to be said of them."""
    try:
        explained = explain_settings()
    except SettingsError as error:
        return None, failed("settings", str(error), "correct it; aerie settings shows where values come from")
    given = [f"{one.name} ({one.source})" for one in explained if one.source not in {"default", "not set"}]
    known = next(one.value for one in explained if one.name == "store")
    return known, passed("settings", ", ".join(given) or "none from the environment, .env or aerie.toml")


def _print(checks: list[Check]) -> None:
    table = Table(box=None, show_header=False)
    for overflow in ("ellipsis", "fold", "fold"):
        table.add_column(overflow=overflow)
    for check in checks:
        text = Text(check.value)
        if check.cure:
            text.append(f"\n{check.cure}", _STYLES[check.verdict])
        table.add_row(Text(check.verdict, _STYLES[check.verdict]), Text(check.name, "bold"), text)
    console = stdout_console()
    console.print(table)
    fails, warns = count_verdict(checks, "fail"), count_verdict(checks, "warn")
    console.print(f"{format_count(len(checks), 'check')}: {fails} failed, {format_count(warns, 'warning')}")
