"""What becomes of samples and engines when a real engine misbehaves; the faults are those of tests/faulty_worker.py.

Bad samples, ends, hangs and growing memory are in tests/flows/test_fault_matrix.py, where a whole run meets them.
"""

import json
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_jobs import EngineJob, make_engine_job

from storage.checks import check_store
from tasks import messages
from tasks.engine.devices import parse_devices
from tasks.engine.errors import ModelLoadError, RankLostError
from tasks.engine_process import EngineProcess

LENGTHS = (40, 300, 7, 120, 64, 33, 90, 250)


@pytest.fixture
def job(tiny_model: Callable[[str], Path], tmp_path: Path) -> EngineJob:
    return make_engine_job(
        tmp_path / "store", tiny_model("llama"), LENGTHS, max_batch_tokens=1024, recheck_fraction=1.0
    )


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: EngineJob) -> Callable[..., EngineProcess]:
    def start(devices: str = "cpu", **faults: Any) -> EngineProcess:
        monkeypatch.setattr(EngineProcess, "MODULE", "faulty_worker")
        monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}:{Path(__file__).parents[2]}")
        monkeypatch.setenv("FAULTS", json.dumps({"diary": str(tmp_path / "diary")} | faults))
        [group] = parse_devices(devices)
        return EngineProcess(replace(job.start, tp_size=group.tp_size), group, tmp_path / "engine.log")

    return start


def run(process: EngineProcess) -> list[messages.Message]:
    heard: list[messages.Message] = []
    process.run_unit(list(range(len(LENGTHS))), heard.append)
    return heard


def test_out_of_memory_halves_the_batch_remembers_the_size_and_sets_one_sample_aside(
    faulty: Callable, job: EngineJob
) -> None:
    with faulty(oom_above=260) as process:
        heard = run(process)
    [quarantined] = [m for m in heard if isinstance(m, messages.Quarantined)]
    assert (quarantined.num_tokens, quarantined.reason) == (300, "out_of_memory")
    assert len(job.store) == len(LENGTHS) - 1
    sizes = [m.num_tokens for m in heard if isinstance(m, messages.BatchStarted)]
    # 904 tokens fit the budget and not the device; what follows is never again as large as what failed.
    assert sizes[0] == sum(LENGTHS)
    assert sum(size > 260 for size in sizes) <= 4


def ranks_of(process: EngineProcess) -> list[psutil.Process]:
    """Return the processes that share a model, the first one first."""
    assert process._process is not None
    first = psutil.Process(process._process.pid)
    return [first, *first.children()]


def test_an_engine_that_loses_a_rank_is_ended_at_once_and_the_next_takes_over(
    faulty: Callable, job: EngineJob, tmp_path: Path
) -> None:
    """While its first rank hangs, and between two units: neither waits for a timeout."""
    hangs = tmp_path / "hangs"
    gone: list[psutil.Process] = []
    killed = 0.0

    def lose_a_rank() -> None:
        nonlocal killed
        ranks = ranks_of(process)
        gone.extend(ranks)
        killed = time.monotonic()
        ranks[1].kill()

    def lose_it_when_it_hangs() -> None:
        while not hangs.exists():
            time.sleep(0.01)
        lose_a_rank()

    def run_and_lose(moment: str) -> None:
        with pytest.raises(RankLostError, match="rank 1 of 2 was killed by SIGKILL, and the engine with it"):
            process.run_unit(list(range(len(LENGTHS))), heard.append)
        print(f"{moment}: found out after {time.monotonic() - killed:.2f} s")

    heard: list[messages.Message] = []
    with faulty("cpu:tp2", stops=[["hang", str(hangs), 0]]) as process:
        threading.Thread(target=lose_it_when_it_hangs, daemon=True).start()
        run_and_lose("while the first rank hangs")
        process.run_unit([0], heard.append)
        lose_a_rank()
        run_and_lose("between two units")
        process.run_unit(list(range(len(LENGTHS))), heard.append)
    psutil.wait_procs(gone, timeout=60)
    assert not [rank for rank in gone if rank.is_running()]
    assert process.counts.restarts == 2
    assert {m.sample_hash for m in heard if isinstance(m, messages.Committed)} == set(job.tokens.sample_hashes)
    assert not check_store(job.store.path, job.start.spec_digest).findings


def test_damaged_weights_are_one_error_that_no_retry_would_cure(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """All ranks of an engine meet them, and any may be the first to end."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    [group] = parse_devices("cpu:tp2")
    start = replace(make_engine_job(tmp_path / "store", model, LENGTHS).start, tp_size=group.tp_size)
    with (
        EngineProcess(start, group, tmp_path / "engine.log") as process,
        pytest.raises(ModelLoadError, match=r"model cannot be loaded: \w+"),
    ):
        run(process)
