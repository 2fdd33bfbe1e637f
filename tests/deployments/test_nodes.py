"""One job on several machines: of three, one loses its power, one its network, and one comes when they are gone."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from jobs import AERIE, chat, run_aerie, user_environment
from network_hosts import Host, network, why_not
from prefect_servers import PrefectServer, until

from storage.checks import check_store
from storage.store import open_store

SAMPLES = 120
PARTS = 3


@dataclass
class Cluster:
    """The machines, and the folder that they share."""

    folder: Path
    head: Host
    nodes: list[Host]
    server: PrefectServer

    def environment(self, host: Host) -> dict[str, str]:
        home = self.folder / f"home-{host.name}"
        return user_environment() | self.server.environment | {"PREFECT_HOME": str(home)}

    def start(self, host: Host, *command: Any) -> Any:
        return host.start([AERIE, *command], self.environment(host), self.folder / f"{host.name}-{command[0]}.log")

    def first_at_work(self, nodes: list[Host]) -> Host | None:
        """Return a node whose engine computes."""
        logs = {node.name: (self.folder / f"{node.name}-worker.log").read_text() for node in nodes}
        return next((node for node in nodes if "forward, batch" in logs[node.name]), None)

    def start_worker(self, node: Host) -> None:
        self.start(node, "worker", "--queue", "gpu", "--limit", "1")

    def parts(self) -> list[dict[str, Any]]:
        return self.server.ask("flow_runs", flows={"name": {"any_": ["extract-part"]}})


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if reason := why_not():
        pytest.skip(reason)
    with network("head", "node-1", "node-2", "node-3") as [head, *nodes]:
        server = PrefectServer(tmp_path, host=head.address, port=4200)
        cluster = Cluster(tmp_path, head, nodes, server)
        server.process = cluster.start(head, "server", "--host", head.address)
        until(server.answers)
        yield cluster


def test_every_sample_is_stored_once_whatever_becomes_of_the_machines(
    cluster: Cluster, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    chats = [chat(f"Question {i}: why is the sky blue?", "Because it scatters light. " * 60) for i in range(SAMPLES)]
    (tmp_path / "chats.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in chats))
    flags = ["--model", tiny_model("llama"), "--data", "chats.jsonl", "--store", "store", "--devices", "cpu"]
    run_aerie("deploy", cwd=tmp_path, env=cluster.environment(cluster.head)).check_returncode()
    *early, comes_late = cluster.nodes
    for node in early:
        cluster.start_worker(node)
    small = ["--part-tokens", 64_000, "--max-batch-tokens", 500]
    run = cluster.start(cluster.head, "extract", "--on-nodes", "--json", *flags, *small)

    dies = until(lambda: cluster.first_at_work(early))
    dies.lose_power()
    is_cut_off = until(lambda: cluster.first_at_work([node for node in early if node is not dies]))
    is_cut_off.lose_network()
    assert not [part for part in cluster.parts() if part["state_type"] == "COMPLETED"], "too early for anybody"
    cluster.start_worker(comes_late)
    said = tmp_path / "head-extract.log"
    assert run.wait() == 0, said.read_text()

    report = json.loads(said.read_text().splitlines()[-1])
    assert report["rows"]["in"] == report["rows"]["done"] == SAMPLES
    assert len(open_store(tmp_path / "store")) == SAMPLES
    assert not stored(tmp_path), "loose copies"
    check = check_store(tmp_path / "store", report["spec_digest"])
    assert (check.checked, check.findings) == (SAMPLES, [])
    assert report["host"] == "head"
    devices = {engine["device"] for engine in report["engines"]}
    assert f"{comes_late.name}:cpu" in devices
    assert f"{dies.name}:cpu" not in devices, "it has reported nothing"
    assert Counter(part["state_name"] for part in cluster.parts()) == {"Crashed": 2, "Completed": PARTS}
    assert not comes_late.processes("tasks.worker")


def stored(folder: Path) -> list[Path]:
    return list(folder.glob("store/objects/*/*/*"))
