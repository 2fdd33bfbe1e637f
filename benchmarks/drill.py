"""A night in short: a schedule fires runs, while engines, flow, worker and server are killed and the disk fills up.

    python benchmarks/drill.py [--minutes 15] [--every 60] [--seed 0]

New chats come for each run of the schedule. Every so often, by chance, one process is killed by SIGKILL: an engine, the
flow, the worker, Prefect's server; worker and server are started again, as a service manager would. Once the disk of
the store is full for a while: a small one in memory, which takes root; without, that is left out, and the figures say
so. Then nothing is killed any more, and one more run of the schedule does what is left. At the end every sample must be
in the store exactly once, every run in a state that its report agrees with, and no process and no slot be left over.
"""

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import models  # puts tests/ on the path
import psutil
from drill_verdict import judge
from jobs import run_aerie
from overhead import WORDS
from prefect_servers import PrefectServer, start_worker, until
from record import RESULTS, write_result

DEPLOYMENT = "extract-nightly"
SAMPLES = 150  # in a file of chats
FILE_BYTES = 50_000_000  # of their states on disk, about
SPARE_BYTES = 700_000_000  # what a run keeps free, and room to pack a file's states
# How long the run that does what is left may take, beginnings of runs and seconds together: no more is a fault.
PATIENCE_RUNS, PATIENCE_SECONDS = 4, 300
KINDS = ("engine", "flow", "worker", "server")
_MODULES = {"engine": "tasks.worker", "flow": "prefect.engine"}


@dataclass
class Night:
    """What the drill works on.

    Attributes:
        folder: where all lies.
        every: seconds between the runs of the schedule.
        events: what was done when, in seconds since the beginning.
        samples: written so far.
    """

    folder: Path
    model: Path
    every: float
    server: PrefectServer
    worker: subprocess.Popen[bytes] | None = None
    began: float = field(default_factory=time.monotonic)
    events: list[tuple[float, str]] = field(default_factory=list)
    samples: int = 0

    @property
    def store(self) -> Path:
        """The store, alone on its disk."""
        return self.folder / "disk" / "store"

    def note(self, event: str) -> None:
        """Write down what happens."""
        self.events.append((round(time.monotonic() - self.began, 1), event))
        print(*self.events[-1], flush=True)

    def write_chats(self) -> None:
        """Add a file of new chats."""
        file = self.folder / "data" / f"{self.samples:06}.jsonl"
        file.parent.mkdir(exist_ok=True)
        lines = [_chat(number) for number in range(self.samples, self.samples + SAMPLES)]
        staged = file.with_suffix(".part")
        staged.write_text("".join(f"{line}\n" for line in lines))
        staged.rename(file)
        self.samples += SAMPLES

    def start_worker(self) -> None:
        """Start a worker, as at the beginning."""
        self.worker = start_worker(self.server, log_name="worker.log")

    def lose_worker(self) -> None:
        """Kill the worker."""
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()

    def processes(self, kind: str) -> list[psutil.Process]:
        """Return the processes of this drill that are an engine or a flow."""
        return [one for one in find_processes(self.server) if _MODULES[kind] in (one.info["cmdline"] or ())]


def main(arguments: list[str] | None = None) -> None:
    """Run it and write the figures; exits with 1 if anything is not as it must be."""
    given = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="aerie-drill-", ignore_cleanup_errors=True) as folder:
        figures = run_drill(Path(folder), given.minutes * 60, given.every, given.seed)
    print(json.dumps(figures, indent=1))
    write_result("drill", figures, given.results)
    if figures["faults"]:
        raise SystemExit(1)


def run_drill(folder: Path, seconds: float, every: float, seed: int = 0) -> dict[str, Any]:
    """Run a drill of so many seconds, and what is left afterwards; the figures name all faults."""
    model, _ = models.ensure_model("llama")
    disk_bytes = SPARE_BYTES + int((seconds / every + 10) * FILE_BYTES)
    with small_disk(folder / "disk", disk_bytes) as can_fill, ExitStack() as undo:
        server = PrefectServer(folder)
        night = Night(folder, model, every, server)
        night.write_chats()
        server.start()
        undo.callback(_end, night)
        _deploy(night)
        night.start_worker()
        night.began = time.monotonic()
        disturb(night, seconds, random.Random(seed), can_fill=can_fill)  # noqa: S311 - no secret
        _rest(night)
        figures = judge(server, night.store, night.samples)
        night.worker = _stop(night.worker)
        left = [one for one in find_processes(server) if server.process is None or one.pid != server.process.pid]
        figures["faults"] += [f"process left: {' '.join((one.info['cmdline'] or ())[:4])}" for one in left]
    counts = Counter(event for _, event in night.events)
    return {"seconds": seconds, "every": every, "seed": seed, "events": dict(counts), "disk_filled": can_fill} | figures


def disturb(night: Night, seconds: float, chance: random.Random, *, can_fill: bool) -> None:
    """Kill something every now and then, each kind at least once, and fill the disk in the middle."""
    until_when = night.began + seconds
    kinds = _endless(chance)
    fills_at = night.began + seconds * chance.uniform(0.3, 0.6) if can_fill else float("inf")
    more_chats = night.began + night.every
    gap = min(night.every, seconds / (len(KINDS) + 1))
    strikes_at = time.monotonic() + gap / 2
    left = {*KINDS}
    while time.monotonic() < until_when or left or fills_at < float("inf"):
        time.sleep(0.2)
        now = time.monotonic()
        if now >= more_chats:
            night.write_chats()
            more_chats += night.every
        if night.worker is not None and night.worker.poll() is not None:
            night.note("worker had given up")
            night.start_worker()
        if now >= fills_at:
            fills_at = float("inf")
            fill_disk(night, min(20.0, night.every / 2))
        elif now >= strikes_at and strike(night, kinds[-1], chance):
            left.discard(kinds.pop())
            kinds = kinds or _endless(chance)
            strikes_at = time.monotonic() + gap * chance.uniform(0.5, 1.2)


def strike(night: Night, kind: str, chance: random.Random) -> bool:
    """Kill one process of a kind; False if there is none now."""
    if kind == "server":
        night.note("server killed")
        night.server.stop()
        time.sleep(chance.uniform(1, min(15, night.every / 2)))
        night.server.start()
    elif kind == "worker":
        night.note("worker killed")
        night.lose_worker()
        night.start_worker()
    else:
        found = night.processes(kind)
        if not found:
            return False
        night.note(f"{kind} killed")
        chance.choice(found).kill()
    return True


def fill_disk(night: Night, seconds: float) -> None:
    """Leave no byte free for a while."""
    night.note("disk filled")
    ballast = night.folder / "disk" / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except OSError:
            pass
    time.sleep(seconds)
    ballast.unlink()


def find_processes(server: PrefectServer) -> list[psutil.Process]:
    """Return all processes that use this server, or are it."""
    found = []
    for process in psutil.process_iter(["environ", "status", "cmdline"]):
        home = (process.info["environ"] or {}).get("PREFECT_HOME")
        if home == server.environment["PREFECT_HOME"] and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


@contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[bool]:
    """Have a small disk in memory at a folder; gives whether it is one of its own: that takes root, and room."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "aerie-drill", str(folder)]
    fits = num_bytes < psutil.virtual_memory().available // 2
    is_mounted = fits and subprocess.run(mount, capture_output=True, check=False).returncode == 0  # noqa: S603 - ours
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S603, S607 - as above


def _endless(chance: random.Random) -> list[str]:
    return chance.sample(KINDS, len(KINDS))


def _chat(number: int) -> str:
    answer = " ".join(WORDS[(number + at) % len(WORDS)] for at in range(170))
    return json.dumps(
        {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": answer}]}
    )


def _deploy(night: Night) -> None:
    """Put the flows on the server, with a schedule of seconds, which no cron expression has."""
    flags = ["--model", night.model, "--data", str(night.folder / "data" / "*.jsonl"), "--store", night.store]
    small = ["--devices", "cpu", "--unit-tokens", 8000, "--max-batch-tokens", 1000]
    run_aerie("deploy", *flags, *small, cwd=night.folder, env=night.server.environment).check_returncode()
    [deployment] = night.server.ask("deployments", deployments={"name": {"any_": [DEPLOYMENT]}})
    schedule = {"active": True, "schedule": {"interval": night.every, "anchor_date": "2026-01-01T00:00:00Z"}}
    address = f"{night.server.url}/api/deployments/{deployment['id']}/schedules"
    night.server.client.post(address, json=[schedule]).raise_for_status()


def _rest(night: Night) -> None:
    """Wait for a run that begins when all is quiet and completes, then end the schedule and what it has planned."""
    night.note("quiet")
    quiet_since = time.time()
    gives_up = time.monotonic() + PATIENCE_RUNS * night.every + PATIENCE_SECONDS
    until(
        lambda: time.monotonic() > gives_up or any(_began_after(run, quiet_since) for run in _completed(night.server)),
        pause_seconds=1,
    )
    [deployment] = night.server.ask("deployments", deployments={"name": {"any_": [DEPLOYMENT]}})
    night.server.client.post(
        f"{night.server.url}/api/deployments/{deployment['id']}/pause_deployment"
    ).raise_for_status()
    until(lambda: not _under_way(night.server), pause_seconds=1)
    until(lambda: slots_taken(night.server) == 0, pause_seconds=1)
    night.note("over")


def _completed(server: PrefectServer) -> list[dict[str, Any]]:
    return list(server.ask("flow_runs", flow_runs={"state": {"type": {"any_": ["COMPLETED"]}}}, sort="START_TIME_DESC"))


def _under_way(server: PrefectServer) -> list[dict[str, Any]]:
    kinds = ["PENDING", "RUNNING", "CANCELLING"]
    return list(server.ask("flow_runs", flow_runs={"state": {"type": {"any_": kinds}}}))


def _began_after(run: dict[str, Any], moment: float) -> bool:
    return datetime.fromisoformat(run["start_time"]).timestamp() > moment


def slots_taken(server: PrefectServer) -> int:
    """Return how many slots of device groups are taken."""
    answer = server.client.post(f"{server.url}/api/v2/concurrency_limits/filter", json={})
    answer.raise_for_status()
    return sum(limit["active_slots"] for limit in answer.json() if limit["name"].startswith("aerie:"))


def _end(night: Night) -> None:
    _stop(night.worker)
    night.server.stop()


def _stop(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:  # an idle worker of Prefect 3.9.1 sometimes waits for a second signal
            process.kill()
            process.wait()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds from run to run (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
