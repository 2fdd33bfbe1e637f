"""What must hold after a drill: every sample once, every state right, no slot taken."""

from collections import Counter
from pathlib import Path
from typing import Any

import models  # noqa: F401 - puts tests/ on the path
from prefect_servers import PrefectServer

from flows.report import RunReport
from storage.checks import check_store
from storage.layout import loose_hashes
from storage.store import open_store

# The states in which a run may end, and what its report must say then; a run that was killed may have left none.
_REPORTS: dict[str, set[str | None]] = {
    "Completed": {"completed"},
    "Failed": {"failed", None},  # None: refused before there was a place for one
    "Crashed": {None, "interrupted", "failed", "completed"},
    "Cancelled": {None, "interrupted"},
}


def judge(server: PrefectServer, store: Path, samples: int) -> dict[str, Any]:
    """Return the figures of the runs and of the store; `faults` names all that is not as it must be."""
    runs = _all_runs(server)
    begun = [run for run in runs if not _is_left_out(run)]
    reports = _reports(server, store)
    said = {run_id: report.status for run_id, report in reports.items()}
    faults = [fault for run in begun if (fault := wrong_state(run, said.get(run["id"])))]
    slots = server.client.post(f"{server.url}/api/v2/concurrency_limits/filter", json={}).json()
    faults += [f"slot taken: {one['name']}" for one in slots if one["active_slots"]]
    found = _check(store, samples)
    return {
        "states": dict(Counter(run["state_name"] for run in begun)),
        "left_out": len(runs) - len(begun),
        "causes": dict(Counter(_cause(run) for run in begun if run["state_type"] != "COMPLETED")),
        "restarts_of_engines": sum(engine.restarts for report in reports.values() for engine in report.engines),
        "samples": samples,
        "done": sum(int(str(report.rows["done"])) for report in reports.values()),
        "faults": faults + found,
    }


def wrong_state(run: dict[str, Any], status: str | None) -> str | None:
    """Say what is wrong with the state of a run whose report has this status; None is no report."""
    name = run["state_name"]
    if status not in _REPORTS.get(name, set()):
        return f"{run['name']} is {name}, its report says {status}"
    if name == "Failed" and "\n" in str(run["state"]["message"]):
        return f"{run['name']} has a cause of several lines"
    return None


def _is_left_out(run: dict[str, Any]) -> bool:
    """Say whether the schedule left a run out, since the one before was not over."""
    return run["state_name"] == "Cancelled" and "concurrency limit" in str(run["state"]["message"])


def _cause(run: dict[str, Any]) -> str:
    """Return the cause of a run's end without what differs from run to run: the words before the first colon."""
    message = str(run["state"]["message"])
    words = message.removeprefix("Flow run encountered an exception: ").partition(":")[0][:80]
    return f"{run['state_name']}: {words}"


def _check(store: Path, samples: int) -> list[str]:
    """Look at every sample: there once, and sound."""
    opened = open_store(store)
    check = check_store(store, opened.spec_digest)
    faults = [f"{finding.where}: {finding.reason}: {finding.detail}" for finding in check.findings]
    if len(opened) != samples:
        faults.append(f"{len(opened)} samples are stored, {samples} were given")
    if check.checked != samples:
        faults.append(f"{check.checked} copies of {samples} samples")
    if loose := sum(1 for _ in loose_hashes(store, opened.spec_digest)):
        faults.append(f"{loose} samples are not packed")
    return faults


def _reports(server: PrefectServer, store: Path) -> dict[str, RunReport]:
    """Return the reports by flow run, as the runs themselves have shown them."""
    found: dict[str, RunReport] = {}
    for artifact in _pages(server, "artifacts", artifacts={"key": {"any_": ["report"]}}, sort="ID_DESC"):
        file = store / "runs" / artifact["description"].removeprefix("Run ") / "report.json"
        if file.exists():
            found.setdefault(artifact["flow_run_id"], RunReport.model_validate_json(file.read_bytes()))
    return found


def _all_runs(server: PrefectServer) -> list[dict[str, Any]]:
    """Return all runs but those that the schedule has planned for later."""
    ended = {"state": {"type": {"not_any_": ["SCHEDULED"]}}}
    return _pages(server, "flow_runs", flow_runs=ended, sort="ID_DESC")


def _pages(server: PrefectServer, what: str, **filters: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while page := server.ask(what, limit=100, offset=len(found), **filters):
        found += page
    return found
