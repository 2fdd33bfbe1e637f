"""What the commands do that put flows on a Prefect server, and the server itself."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from flows.deployments import Deployment, known_settings, list_deployments
from flows.prefect_defaults import require_known_server
from flows.printing import print_line, print_pairs
from flows.settings import explain_settings
from flows.settings_flags import given_settings
from flows.ui_server import require_address, run_server
from tasks.engine.devices import parse_devices

if TYPE_CHECKING:
    from flows.work_pool import Change


def deploy(arguments: argparse.Namespace) -> int:
    """Put deployments, a work pool, queues and limits on the Prefect server; their forms start with these settings."""
    deployments, devices = _choose(arguments)
    groups = [group.name for group in parse_devices(devices)]
    require_known_server()
    from flows import work_pool  # noqa: PLC0415 - imports prefect, which takes a second

    changes = work_pool.deploy(deployments, groups, keep_schedules=arguments.nightly is None)
    _print(changes, as_json=arguments.json)
    if not arguments.json:
        print("next, on each machine that is to work: aerie worker")
    return 0


def undeploy(arguments: argparse.Namespace) -> int:
    """Say what `aerie deploy` put on the Prefect server, and take it off with --yes; runs and their logs stay."""
    require_known_server()
    from flows import work_pool  # noqa: PLC0415 - see above

    change = work_pool.undeploy if arguments.yes else work_pool.list_deployed
    changes = change(list_deployments({}))
    _print(changes, as_json=arguments.json)
    if not arguments.yes and not arguments.json:
        print("nothing was changed; --yes removes it" if changes else "nothing of aerie deploy is there")
    return 0


def serve(arguments: argparse.Namespace) -> int:
    """Run what the Prefect server asks for on this machine, without a work pool, until interrupted."""
    deployments, _ = _choose(arguments)
    require_known_server()
    from flows.local_serving import serve_deployments  # noqa: PLC0415 - see above

    _keep_names_ours()
    _heed_interrupts()
    print_line(f"serving {', '.join(one.name for one in deployments)}; Ctrl-C ends it")
    serve_deployments(deployments)
    return 0


def worker(arguments: argparse.Namespace) -> int:
    """Work for the Prefect server on this machine: Prefect's own worker, for the pool of `aerie deploy`."""
    require_known_server()
    pool = list_deployments({})[0].pool
    queues = [part for queue in arguments.queue or () for part in ("--work-queue", queue)]
    limit = ["--limit", str(arguments.limit)] if arguments.limit else []
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, "--type", "process", *queues, *limit]
    os.environ.pop("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", None)  # here its log is what there is to see
    _keep_names_ours()
    _heed_interrupts()
    os.execv(sys.executable, command)  # noqa: S606 - our own interpreter and module


def server(arguments: argparse.Namespace) -> int:
    """Run a Prefect server, by default for this machine alone and with no word to anybody else."""
    require_address(arguments.host, arguments.port)
    address = f"http://{arguments.host}:{arguments.port}"
    print_line(f"Prefect's pages: {address}; in other terminals: export PREFECT_API_URL={address}/api")
    os.environ.pop("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", None)  # as above
    run_server(arguments.host, arguments.port)
    return 0


def _keep_names_ours() -> None:
    """Have what Prefect starts find our packages: it runs scripts beside a `storage.py` of its own."""
    os.environ["PYTHONSAFEPATH"] = "1"


def _heed_interrupts() -> None:
    """Let SIGINT end what follows: Prefect's worker ends itself by one, whichever signal it got.

    A shell ignores it for what a script runs in the background, and so would the worker.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _choose(arguments: argparse.Namespace) -> tuple[list[Deployment], str]:
    """Return the deployments, and the devices of this host."""
    explained = explain_settings(**given_settings(arguments))
    devices = next(item.value for item in explained if item.name == "devices")
    return list_deployments(known_settings(explained), arguments.nightly), devices


def _print(changes: "Iterable[Change]", *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(change) for change in changes]))
    else:
        print_pairs("Prefect server", [(f"{one.kind} {one.name}", one.what) for one in changes])


def add_nightly(parser: argparse.ArgumentParser) -> None:
    """Add the flag of the nightly schedule."""
    parser.add_argument(
        "--nightly",
        metavar="CRON",
        help='run extract-nightly by this cron expression, in UTC, as "0 1 * * *"; without, its schedule stays as '
        "it is, at first paused",
    )


def add_work(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what a worker takes."""
    parser.add_argument(
        "--queue", action="append", metavar="NAME", help="gpu or cpu, may be given twice; by default all of the pool"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="runs at once on this machine; by default no limit")


def add_address(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the server's address."""
    defaults: dict[str, Any] = {"host": "127.0.0.1", "port": 4200}
    parser.add_argument(
        "--host", default=defaults["host"], help="address to listen at (%(default)s: this machine alone)"
    )
    parser.add_argument("--port", type=int, default=defaults["port"], help="(%(default)s)")
