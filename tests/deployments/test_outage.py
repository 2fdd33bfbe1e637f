"""Prefect's server goes away in the middle of a run, and comes back with its database."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import AERIE, LINES, user_environment, write_lines
from prefect_servers import PrefectServer, until

from storage.store import open_store

UNITS = 4


@pytest.fixture
def command(tiny_model: Callable[[str], Path], tmp_path: Path) -> list[str]:
    data = write_lines(tmp_path / "chats.jsonl")
    flags: dict[str, Any] = {"model": tiny_model("llama"), "data": data, "store": tmp_path / "store", "devices": "cpu"}
    small = {"unit-tokens": 1904 // UNITS, "max-batch-tokens": 300}
    return [str(AERIE), "extract", "--json", *(str(part) for flag in (flags | small).items() for part in _flag(*flag))]


def _flag(name: str, value: Any) -> tuple[str, Any]:
    return f"--{name}", value


def test_the_work_goes_on_and_its_state_is_right_in_the_end(
    server: PrefectServer, command: list[str], tmp_path: Path
) -> None:
    said = tmp_path / "stderr"
    environment = user_environment() | server.environment
    with said.open("wb") as stderr:
        run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, cwd=tmp_path)
    until(lambda: "engine: canary" in said.read_text() or run.poll() is not None)
    server.stop()
    [report] = until(lambda: run.poll() is not None or list(tmp_path.glob("store/runs/*/report.json")))
    server.start()
    stdout, _ = run.communicate()
    assert run.returncode == 0, said.read_text()

    rows = json.loads(stdout)["rows"]
    assert rows == json.loads(report.read_text())["rows"]
    assert rows["in"] == len(LINES)
    assert (rows["done"], rows["unfinished"]) == (8, 0)
    assert len(open_store(tmp_path / "store")) == 8
    [flow_run] = server.ask("flow_runs", sort="START_TIME_DESC", limit=1)
    assert (flow_run["state_name"], flow_run["name"]) == ("Completed", f"extract {Path(command[4]).name} into store")
    ours = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    artifacts = {artifact["key"]: artifact["data"] for artifact in server.ask("artifacts", **ours)}
    assert {"accounting", "engines", "report"} < artifacts.keys()
    assert artifacts["progress-extract"] == 100.0
    tasks = [task["state_name"] for task in server.ask("task_runs", **ours)]
    assert tasks == ["Completed"] * (UNITS + len(("tokenize", "validate", "compact")))
    logs = server.ask("logs", logs={"flow_run_id": {"any_": [flow_run["id"]]}})
    assert sum(line["message"].startswith("cpu: unit done") for line in logs) == UNITS
