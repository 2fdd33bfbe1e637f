"""One job, taken up again with fewer engines each time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import chat, snapshot, user_environment, write_lines

NUM_SAMPLES = 37
ROOT = Path(__file__).parents[2]


class Run:
    """Runs of `aerie extract` in a folder, whose engines keep a diary and stand still after so many samples."""

    def __init__(self, folder: Path, model: Path, env: dict[str, str]) -> None:
        rows = [chat(f"Question {number}: why?", "Because it is so.") for number in range(NUM_SAMPLES)]
        self.store, self.diary, self._folder = folder / "store", folder / "diary", folder
        data = write_lines(folder / "chats.jsonl", map(json.dumps, rows))
        # A batch has room for one sample of about 45 tokens.
        flags = {"model": model, "data": data, "store": self.store, "max-batch-tokens": 64, "recheck-fraction": 0}
        self._flags = [f"--{flag}={value}" for flag, value in (flags | {"compact": "false"}).items()]
        self._env = user_environment() | env | {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}"}

    def start(self, devices: str, **faults: Any) -> subprocess.Popen[bytes]:
        env = self._env | {"FAULTS": json.dumps({"diary": str(self.diary), **faults})}
        command = [sys.executable, "-m", "faulty_aerie", "extract", f"--devices={devices}", *self._flags]
        with (self._folder / "said").open("ab") as said:
            return subprocess.Popen(command, cwd=self._folder, env=env, stderr=said, start_new_session=True)

    def stop_at(self, committed: int, how: signal.Signals, run: subprocess.Popen[bytes]) -> None:
        """Send a signal to the run's process group once so many samples are committed, which is all that it does."""
        while self.num_objects() < committed:
            assert run.poll() is None, (self._folder / "said").read_text()
            time.sleep(0.01)
        os.killpg(run.pid, how)
        run.wait(timeout=300)

    def num_objects(self) -> int:
        return sum(1 for _ in self.store.glob("objects/*/*/*"))

    def computed(self) -> list[str]:
        """Return the sample of each forward of all runs."""
        entries = map(json.loads, self.diary.read_text().splitlines())
        return [name for *_, word, hashes in entries if word == "forward" for name in hashes]

    def reports(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in sorted(self.store.glob("runs/*/report.json"))]


@pytest.fixture
def run(tmp_path: Path, tiny_model: Callable[[str], Path], with_server: dict[str, str]) -> Run:
    return Run(tmp_path, tiny_model("llama"), with_server)


def test_a_job_of_3_then_2_then_1_engine_stores_each_sample_once_and_computes_none_twice(run: Run) -> None:
    run.stop_at(15, signal.SIGINT, run.start("cpu,cpu,cpu", pause=5))
    first = snapshot(run.store / "objects")
    run.stop_at(27, signal.SIGKILL, run.start("cpu,cpu", pause=6))
    second = snapshot(run.store / "objects")
    assert run.start("cpu").wait(timeout=600) == 0
    third = snapshot(run.store / "objects")

    assert run.num_objects() == NUM_SAMPLES
    assert first.items() <= second.items() <= third.items(), "what is committed is not touched again"
    assert len(run.computed()) == len(set(run.computed())) == NUM_SAMPLES
    interrupted, completed = run.reports()  # one that is killed leaves none
    assert interrupted["rows"]["done"] + interrupted["rows"]["unfinished"] == NUM_SAMPLES
    assert (completed["rows"]["done"], completed["rows"]["reused"]) == (10, 27)
    assert [engine["samples"] for engine in completed["engines"]] == [10]
