"""A machine dies, and with it worker and flow: nobody is left to say so, but Prefect's server knows."""

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from jobs import chat, run_aerie
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.events.schemas.automations import EventTrigger
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect_servers import PrefectServer, running_worker, until

from flows.crash_detection import TAG, automations, ensure
from flows.presence import correct

CHATS = [
    json.dumps(chat(f"Question {i}: why is the sky blue?", "Because it scatters light. " * 30)) for i in range(500)
]


@pytest.fixture
def work(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Path:
    (tmp_path / "chats.jsonl").write_text("\n".join(CHATS) + "\n")
    (tmp_path / "tiny-llama").symlink_to(tiny_model("llama"))
    return tmp_path


def test_runs_whose_owner_is_gone_become_crashed_and_others_do_not(server: PrefectServer, work: Path) -> None:
    deploy(server, work)
    with running_worker(server):
        [extract] = server.ask("deployments", deployments={"name": {"any_": ["extract"]}})
        real = post(server, f"deployments/{extract['id']}/create_flow_run", state={"type": "SCHEDULED"})["id"]
        until(lambda: slots_taken(server) == 1)
        until(lambda: processes_of(server, "tasks.worker"))
        for process in processes_of(server, "prefect.engine") + processes_of(server, "worker"):
            process.send_signal(signal.SIGKILL)
        until(lambda: not processes_of(server, "tasks.worker"))

    begins_at_once(server)
    states = [("RUNNING", None), ("PENDING", None), ("CANCELLING", None), ("COMPLETED", "CompletedWithFindings")]
    running, pending, cancelling, completed = (make_run(server, extract, [TAG], *state) for state in states)
    foreign = make_run(server, extract, [], "RUNNING", None)
    for run in (real, running, pending):
        until(lambda run=run: server.run(run)["state_type"] == "CRASHED")
    until(lambda: server.run(cancelling)["state_type"] == "CANCELLED")
    assert server.run(real)["state"]["message"].startswith("no heartbeat for 50 s")
    assert server.run(completed)["state_name"] == "CompletedWithFindings"
    assert server.run(foreign)["state_type"] == "RUNNING"
    until(lambda: slots_taken(server) == 0)

    over = threading.Event()
    with client_of(server):
        correct(UUID(running), over)
        over.set()
        correct(UUID(pending), over)
    assert server.run(running)["state_type"] == "RUNNING"
    assert server.run(pending)["state_type"] == "CRASHED"
    post(server, f"flow_runs/{pending}/set_state", state={"type": "RUNNING"})
    assert server.run(pending)["state_type"] == "RUNNING", "it was only slow to begin"

    run_aerie("undeploy", "--yes", cwd=work, env=server.environment).check_returncode()
    assert server.ask("automations") == []


def test_cancelling_a_job_of_several_machines_ends_what_they_do_for_it(server: PrefectServer, work: Path) -> None:
    deploy(server, work)
    with running_worker(server, "--limit", "2", log_name="nodes.log"):  # the job, and one part of it
        [job] = server.ask("deployments", deployments={"name": {"any_": ["extract-on-nodes"]}})
        asked = {"parameters": job["parameters"] | {"part_tokens": 20_000}, "state": {"type": "SCHEDULED"}}
        run = post(server, f"deployments/{job['id']}/create_flow_run", **asked)["id"]
        until(lambda: processes_of(server, "tasks.worker"))
        parts = server.ask("flow_runs", flows={"name": {"any_": ["extract-part"]}})
        assert len(parts) > 1
        post(server, f"flow_runs/{run}/set_state", state={"type": "CANCELLING"})
        until(lambda: server.run(run)["state_type"] == "CANCELLED")
        for part in parts:
            until(lambda part=part: server.run(part["id"])["state_type"] == "CANCELLED")
        assert processes_of(server, "tasks.worker") == []
        until(lambda: slots_taken(server) == 0)


def deploy(server: PrefectServer, work: Path) -> None:
    flags = ["--model", "tiny-llama", "--data", "chats.jsonl", "--store", "store", "--devices", "cpu"]
    small = ["--unit-tokens", 8000, "--max-batch-tokens", 500]
    run_aerie("deploy", *flags, *small, cwd=work, env=server.environment).check_returncode()
    assert sorted(one["name"] for one in server.ask("automations")) == sorted(one.name for one in automations())


def begins_at_once(server: PrefectServer) -> None:
    """Have the server wait not so long for a run to begin."""
    [one] = [one for one in automations() if one.name.endswith("never begin")]
    assert isinstance(one.trigger, EventTrigger)
    one.trigger.within = timedelta(seconds=10)
    with client_of(server) as client:
        ensure(client, one)


@contextmanager
def client_of(server: PrefectServer) -> Iterator[SyncPrefectClient]:
    known = temporary_settings({PREFECT_API_URL: server.environment["PREFECT_API_URL"]})
    with known, get_client(sync_client=True) as client:
        yield client


def post(server: PrefectServer, path: str, **body: Any) -> Any:
    """Post, again where SQLite is busy, as Prefect's own clients do."""
    send = partial(server.client.post, f"{server.url}/api/{path}", json=body)
    answer = until(lambda: (got := send()).status_code != HTTPStatus.SERVICE_UNAVAILABLE and got)
    answer.raise_for_status()
    return answer.json()


def make_run(server: PrefectServer, deployment: dict[str, Any], tags: list[str], state: str, name: str | None) -> str:
    """Make a run of nobody in this state."""
    run_id = str(post(server, "flow_runs/", flow_id=deployment["flow_id"], tags=tags, state={"type": "PENDING"})["id"])
    for kind, called in (("RUNNING", None), (state, name)) if state != "PENDING" else ():
        post(server, f"flow_runs/{run_id}/set_state", state={"type": kind, "name": called}, force=True)
    return run_id


def slots_taken(server: PrefectServer) -> int:
    limits = post(server, "v2/concurrency_limits/filter")
    return sum(limit["active_slots"] for limit in limits if limit["name"].startswith("aerie:"))


def processes_of(server: PrefectServer, argument: str) -> list[psutil.Process]:
    """Return the processes of this server's runs and workers that have this argument."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "environ"])
        if argument in (process.info["cmdline"] or ())
        and (process.info["environ"] or {}).get("PREFECT_API_URL") == server.environment["PREFECT_API_URL"]
    ]
