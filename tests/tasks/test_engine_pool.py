"""Engines whose devices another run has: a real process claims them, or a real engine does."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import psutil
import pytest
from engine_jobs import EngineJob, make_engine_job

from tasks import messages
from tasks.engine.claims import find_holder
from tasks.engine.devices import DeviceGroup
from tasks.engine.errors import DeviceTakenError
from tasks.engine.gpus import Gpu
from tasks.engine_pool import EnginePool
from tasks.engine_process import EngineProcess
from tasks.extraction import extract_unit

HOLD = """
import sys, time, tasks.engine.claims
tasks.engine.claims.claim_devices(sys.argv[1:])
print("claimed", flush=True)
time.sleep(600)
"""


@pytest.fixture
def taken() -> DeviceGroup:
    """Return a group of one device; engines in it run on the CPU."""
    return DeviceGroup("gpu-0", "cpu", (Gpu("0", f"GPU-{uuid4()}"),))


@pytest.fixture
def other_run(taken: DeviceGroup) -> Iterator[subprocess.Popen[bytes]]:
    """Return a process that has the device."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, taken.gpus[0].uuid], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def job(tmp_path: Path, tiny_model: Callable[[str], Path]) -> EngineJob:
    return make_engine_job(tmp_path / "store", tiny_model("llama"), (3, 4))


class Ear:
    """Keeps what is said; `on_wait` is called when an engine waits."""

    def __init__(self, on_wait: Callable[[], object] = lambda: None) -> None:
        self.said: list[messages.Message] = []
        self._on_wait = on_wait

    def __call__(self, message: messages.Message) -> None:
        self.said.append(message)
        if isinstance(message, messages.Phase) and message.name.startswith("waits"):
            self._on_wait()


@pytest.mark.usefixtures("other_run")
def test_an_engine_whose_device_is_taken_is_passed_over(job: EngineJob, taken: DeviceGroup, tmp_path: Path) -> None:
    with EnginePool(job.start, [taken, DeviceGroup("cpu", "cpu")], tmp_path) as pool, pool.lease(Ear()) as lease:
        assert lease.engine.group.name == "cpu"


def test_a_run_without_any_device_says_so_and_is_refused_after_its_wait(
    job: EngineJob, taken: DeviceGroup, other_run: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ear, holder = Ear(), f"{taken.gpus[0].uuid} is taken by process {other_run.pid}, an engine of another run"
    pool = EnginePool(job.start, [taken], tmp_path, device_wait_seconds=2.0)
    with pytest.raises(DeviceTakenError) as error, pool.lease(ear):
        pass
    assert ear.said == [messages.Phase(f"waits, {holder}", "gpu-0")]
    cure = "choose other devices, or raise device_wait_seconds"
    assert str(error.value) == f"{holder}; this run waited 2 s for it; {cure}"


def test_a_run_that_waits_goes_on_when_the_other_ends(
    job: EngineJob, taken: DeviceGroup, other_run: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ear = Ear(on_wait=other_run.kill)
    with EnginePool(job.start, [taken], tmp_path, device_wait_seconds=600.0) as pool, pool.lease(ear) as lease:
        assert lease.engine.group == taken
    assert other_run.wait() == -9


def test_a_device_is_held_by_the_engine_process_as_long_as_that_lives(
    job: EngineJob, taken: DeviceGroup, tmp_path: Path
) -> None:
    uuid = taken.gpus[0].uuid
    ours, theirs = (EngineProcess(job.start, taken, tmp_path / name) for name in ("ours", "theirs"))
    with ours, theirs:
        ours.run_unit([0], Ear())
        holder = find_holder(uuid)
        assert holder is not None
        assert psutil.Process(holder).ppid() == os.getpid()
        assert ours.find_holder() is None
        assert theirs.find_holder() == f"{uuid} is taken by process {holder}, an engine of another run"
        with pytest.raises(DeviceTakenError, match=f"by process {holder}, "):
            theirs.run_unit([0], Ear())
        ours.kill()
        theirs.run_unit([0], Ear())
        assert theirs.counts.restarts == 0
        assert find_holder(uuid) not in (None, holder)


def test_a_unit_waits_too_where_another_run_was_quicker_by_a_moment(
    job: EngineJob,
    taken: DeviceGroup,
    other_run: subprocess.Popen[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look, looks = EngineProcess.find_holder, iter([None])
    monkeypatch.setattr(EngineProcess, "find_holder", lambda engine: next(looks, look(engine)))
    ear = Ear(on_wait=lambda: threading.Timer(0.1, other_run.kill).start())
    with EnginePool(job.start, [taken], tmp_path, device_wait_seconds=600.0) as pool:
        extract_unit(np.array([0, 1]), pool, ear)
    assert sum(isinstance(message, messages.Committed) for message in ear.said) == 2
