"""What becomes of samples and engines when a real engine misbehaves; the faults are those of tests/faulty_worker.py."""

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
from tasks import messages, patience
from tasks.engine.devices import parse_devices
from tasks.engine.errors import ModelLoadError, RankLostError
from tasks.engine_process import EngineProcess
from tasks.errors import WorkerError

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


def test_bad_samples_are_set_aside_by_reason_and_the_others_kept(faulty: Callable, job: EngineJob) -> None:
    """In one batch with them, and what is set aside is computed by the next run."""
    names = job.tokens.sample_hashes
    bad = {0: "non_finite", 2: "all_zero", 4: "parity", 6: "engine_state"}
    with faulty(nan=[names[0]], zero=[names[2]], leak=[names[4]], short=[names[6]]) as process:
        heard = run(process)
    quarantined = {m.sample_hash: m.reason for m in heard if isinstance(m, messages.Quarantined)}
    assert quarantined == {names[index]: reason for index, reason in bad.items()}
    committed = {m.sample_hash for m in heard if isinstance(m, messages.Committed)}
    assert committed == set(names) - quarantined.keys() == set(job.store)
    assert not check_store(job.store.path, job.start.spec_digest).findings
    with faulty() as process:
        run(process)
    assert set(job.store) == set(names)


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


@pytest.mark.parametrize(("fault", "says"), [("exit", "ended with exit code 3"), ("hang", "said nothing for 5 s")])
def test_a_dead_or_hung_engine_is_ended_and_the_next_takes_over(
    faulty: Callable, job: EngineJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, says: str
) -> None:
    monkeypatch.setattr(patience, "FIRST_BATCH_SECONDS", 5.0)
    with faulty(stops=[[fault, str(tmp_path / "happened"), 0]]) as process:
        with pytest.raises(WorkerError, match=says):
            run(process)
        failed = time.monotonic()
        heard = run(process)
    print(f"{fault}: all committed {time.monotonic() - failed:.1f} s after the engine was found out")
    assert {m.sample_hash for m in heard if isinstance(m, messages.Committed)} == set(job.tokens.sample_hashes)


def ranks_of(process: EngineProcess) -> list[psutil.Process]:
    """Return the processes that share a model, the first one first."""
    assert process._process is not None
    first = psutil.Process(process._process.pid)
    return [first, *first.children()]


def test_an_engine_that_loses_a_rank_is_ended_at_once_and_the_next_takes_over(
    faulty: Callable, job: EngineJob, tmp_path: Path
) -> None:
    """While its first rank hangs, between two units, and in a forward: none of them waits for a timeout."""
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

    def lose_it_in_a_forward(message: messages.Message) -> None:
        if isinstance(message, messages.BatchStarted):
            lose_a_rank()

    def run_and_lose(moment: str, on_event: Callable[[messages.Message], None]) -> None:
        with pytest.raises(RankLostError, match="rank 1 of 2 was killed by SIGKILL, and the engine with it"):
            process.run_unit(list(range(len(LENGTHS))), on_event)
        print(f"{moment}: found out after {time.monotonic() - killed:.2f} s")

    heard: list[messages.Message] = []
    with faulty("cpu:tp2", stops=[["hang", str(hangs), 0]]) as process:
        threading.Thread(target=lose_it_when_it_hangs, daemon=True).start()
        run_and_lose("while the first rank hangs", heard.append)
        process.run_unit([0], heard.append)
        lose_a_rank()
        run_and_lose("between two units", heard.append)
        run_and_lose("in a forward", lose_it_in_a_forward)
        process.run_unit(list(range(len(LENGTHS))), heard.append)
    psutil.wait_procs(gone, timeout=60)
    assert not [rank for rank in gone if rank.is_running()]
    assert process.counts.restarts == 3
    assert {m.sample_hash for m in heard if isinstance(m, messages.Committed)} == set(job.tokens.sample_hashes)
    assert not check_store(job.store.path, job.start.spec_digest).findings


def test_an_engine_that_outgrows_its_memory_is_ended_after_its_unit_and_a_fresh_one_does_the_next(
    faulty: Callable,
) -> None:
    with faulty(grow=64 << 20) as process:
        process._start = replace(process._start, max_growth_bytes=100 << 20)
        heard: list[messages.Message] = []
        for index in range(4):
            process.run_unit([index], heard.append)
    said = [m.name for m in heard if isinstance(m, messages.Phase)]
    assert said[3].startswith("ended, for the next unit a fresh one starts (memory grew by ")
    assert said[3].endswith("since its first unit, the limit is 104,857,600)")
    assert said[4:] == ["starts again", *said[:3]]
    assert process.counts.restarts == 1
    assert process.counts.samples == 4
    assert process.counts.peak_memory_bytes > 256 << 20


@pytest.mark.parametrize("devices", ["cpu", "cpu:tp2"])
def test_damaged_weights_are_one_error_that_no_retry_would_cure(
    tiny_model: Callable[[str], Path], tmp_path: Path, devices: str
) -> None:
    """Also where all ranks of an engine meet them, whichever is the first to end."""
    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    [group] = parse_devices(devices)
    start = replace(make_engine_job(tmp_path / "store", model, LENGTHS).start, tp_size=group.tp_size)
    with (
        EngineProcess(start, group, tmp_path / "engine.log") as process,
        pytest.raises(ModelLoadError, match=r"model cannot be loaded: \w+"),
    ):
        run(process)
