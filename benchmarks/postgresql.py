"""Many work units handed to a work pool, pulled by several workers, with Prefect's state in PostgreSQL.

    nice -n 5 python benchmarks/postgresql.py [--workers 4] [--units 200]

A unit is a run of our flow `validate-store` on a store of five samples, a process of its own. Server, workers and
PostgreSQL run on this machine. An error is a line of level ERROR or above, or a traceback, in any of their logs.
"""

import argparse
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import models  # noqa: F401 - puts tests/ on the path
from jobs import run_aerie
from postgres_server import running_postgres
from prefect_servers import PrefectServer, running_server, running_worker, until
from record import write_result
from small_samples import LENGTHS, make_store, write_samples

DEPLOYMENT = "validate"
_ERROR = re.compile(r"\b(ERROR|CRITICAL|FATAL|PANIC)\b|Traceback \(most recent")


def main() -> None:
    """Run it and write the figures; exits with 1 if there was an error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--units", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aerie-units-", ignore_cleanup_errors=True) as folder:
        figures = run_units(Path(folder), arguments.workers, arguments.units)
    print(write_result("postgresql", figures), figures)
    if figures["errors"] or figures["states"] != {"Completed": arguments.units}:
        raise SystemExit(1)


def run_units(folder: Path, workers: int, units: int) -> dict[str, Any]:
    """Run the units in a folder; the figures say what became of them, and which lines of the logs are errors."""
    store = folder / "store"
    make_store(store)
    write_samples(store, range(len(LENGTHS)))
    with _running(folder, workers) as server:
        started = time.monotonic()
        [deployment] = server.ask("deployments", deployments={"name": {"any_": [DEPLOYMENT]}})
        address = f"{server.url}/api/deployments/{deployment['id']}/create_flow_run"
        for number in range(units):
            body = {"name": f"unit {number}", "parameters": {"store": str(store)}, "state": {"type": "SCHEDULED"}}
            server.client.post(address, json=body).raise_for_status()
        until(lambda: _count(server, "SCHEDULED", "PENDING", "RUNNING") == 0, pause_seconds=1)
        seconds = time.monotonic() - started
        runs = _all_runs(server)
        logged = server.ask("logs", logs={"level": {"ge_": 40}})
        errors = find_errors(folder)  # before PostgreSQL is ended under its clients
    return {
        "workers": workers,
        "units": units,
        "states": dict(Counter(run["state_name"] for run in runs)),
        "started_more_than_once": sum(run["run_count"] != 1 for run in runs),
        "units_of_each_worker": [_count_units(log) for log in sorted(folder.glob("worker-*.log"))],
        "seconds": round(seconds, 1),
        "errors": [*errors, *(line["message"] for line in logged)],
    }


def find_errors(folder: Path) -> list[str]:
    """Return the lines of all logs in a folder that are errors."""
    return [
        f"{log.name}: {line}"
        for log in sorted(folder.glob("*.log"))
        for line in log.read_text("utf-8").splitlines()
        if _ERROR.search(line)
    ]


@contextmanager
def _running(folder: Path, workers: int) -> Iterator[PrefectServer]:
    with ExitStack() as running:
        url = running.enter_context(running_postgres(folder / "postgresql.log"))
        server = running.enter_context(running_server(folder, PREFECT_SERVER_DATABASE_CONNECTION_URL=url))
        run_aerie("deploy", "--devices", "cpu", cwd=folder, env=server.environment).check_returncode()
        for number in range(workers):
            flags = ("--queue", "cpu", "--limit", "1")
            running.enter_context(running_worker(server, *flags, log_name=f"worker-{number}.log"))
        yield server


def _count_units(log: Path) -> int:
    """Count the runs that began; of two workers that take one, Prefect's server stops the second."""
    return len(set(re.findall(r"/runs/flow-run/([0-9a-f-]+)", log.read_text("utf-8"))))


def _count(server: PrefectServer, *states: str) -> int:
    body = {"flow_runs": {"state": {"type": {"any_": list(states)}}}}
    answer = server.client.post(f"{server.url}/api/flow_runs/count", json=body)
    answer.raise_for_status()
    return int(answer.json())


def _all_runs(server: PrefectServer) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    while page := server.ask("flow_runs", sort="ID_DESC", limit=100, offset=len(runs)):
        runs += page
    return runs


if __name__ == "__main__":
    main()
