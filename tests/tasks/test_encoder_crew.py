"""Processes that encode: what they store is what landed, what they cannot store is heard, and none is left behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch
from samples_on_their_way import SPEC, make_sample

from storage.errors import SampleShapeError
from storage.objects import ObjectInfo
from storage.store import Store, add_spec, init_store, open_store
from tasks.device_split import split_states
from tasks.encoder_crew import EncoderCrew
from tasks.errors import EncoderLostError
from tasks.landing import SharedLanding
from tasks.trace import Trace, begin_trace
from tasks.writer import Sample


@pytest.fixture
def store(tmp_path: Path) -> Store:
    init_store(tmp_path / "store")
    add_spec(tmp_path / "store", SPEC)
    return open_store(tmp_path / "store", SPEC.digest())


class Encoding:
    """A crew over memory that it shares; keeps what was committed and what went wrong."""

    def __init__(
        self, store: Store, *, threads: int = 16, splits: bool = False, trace: Path | None = None, device: str = "cpu"
    ) -> None:
        self.infos: list[ObjectInfo] = []
        self.errors: list[BaseException] = []
        self.changed = threading.Condition()
        self.trace = Trace(trace, "test")
        self.device = device
        self.landing = SharedLanding(1 << 20, device)
        self.splits = splits
        before = set(psutil.Process().children())
        self.crew = EncoderCrew(
            str(store.path),
            SPEC.digest(),
            self.landing.memory,
            threads=threads,
            takes_split=splits,
            on_commit=lambda _, info: self._add(self.infos, info),
            trace=self.trace,
        )
        self.crew.on_error = lambda error: self._add(self.errors, error)
        self.processes = [child for child in psutil.Process().children() if child not in before]

    def submit(self, ids: npt.NDArray[np.int32], states: torch.Tensor) -> None:
        computed = states.to(self.device)
        landed = split_states(computed, [len(states)])[0] if self.splits else computed
        self.crew.submit(Sample(1, 0, ids), self.landing.land(landed))

    def wait(self, count: int) -> None:
        """Wait until so many samples are committed or failed."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.infos) + len(self.errors) >= count, timeout=60)

    def _add(self, kept: list[Any], one: object) -> None:
        with self.changed:
            kept.append(one)
            self.changed.notify_all()


@pytest.fixture
def encoding(store: Store) -> Iterator[Callable[..., Encoding]]:
    made: list[Encoding] = []

    def make(**options: object) -> Encoding:
        made.append(Encoding(store, **options))  # type: ignore[arg-type] # a test gives what it takes
        return made[-1]

    yield make
    for one in made:
        one.crew.close()
        one.landing.close()
        assert [process for process in one.processes if process.is_running()] == []


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_what_is_stored_is_what_landed(
    store: Store, encoding: Callable[..., Encoding], device: str, *, splits: bool
) -> None:
    made = encoding(splits=splits, device=device)
    samples = [make_sample(seed, num_tokens=1 + 60 * seed) for seed in range(8)]
    for _ in range(2):  # more than its memory holds at a time
        for ids, states in samples:
            made.submit(ids, states)
    made.wait(16)
    assert made.errors == []
    assert len(made.processes) == 2
    assert made.landing.ring.used_bytes == 0
    assert made.crew.cpu_seconds > 0
    store.refresh()
    assert len(store) == 8
    hashes = {info.num_tokens: info.sample_hash for info in made.infos}
    for ids, states in samples:
        found = store[hashes[len(ids)]]
        assert np.array_equal(found.input_ids, ids)
        assert np.array_equal(found.hidden_states().view(np.uint16), states.view(torch.uint16).numpy())


def test_what_cannot_be_stored_is_heard_as_what_it_is(encoding: Callable[..., Encoding]) -> None:
    made = encoding()
    ids, states = make_sample(0)
    for _ in range(20):
        made.submit(ids[:-1], states)
    made.submit(ids, states)
    made.wait(21)
    assert [type(error) for error in made.errors] == [SampleShapeError] * 20
    assert len(made.infos) == 1  # it goes on
    assert made.landing.ring.used_bytes == 0


def test_a_process_that_is_killed_is_heard(store: Store, encoding: Callable[..., Encoding]) -> None:
    made = encoding(threads=1)
    ids, states = make_sample(0)
    made.submit(ids, states)
    made.wait(1)
    made.processes[0].send_signal(signal.SIGKILL)
    made.wait(2)
    (error,) = made.errors
    assert isinstance(error, EncoderLostError)
    assert "a process that encodes was killed by SIGKILL" in str(error)
    store.refresh()
    assert len(store) == 1


def test_its_spans_are_on_the_timeline(encoding: Callable[..., Encoding], tmp_path: Path) -> None:
    begin_trace(tmp_path / "trace.json")
    made = encoding(threads=1, trace=tmp_path / "trace.json")
    began = time.monotonic()
    made.submit(*make_sample(0, num_tokens=300))
    made.wait(1)
    ended = time.monotonic()
    events = [json.loads(line.rstrip(",")) for line in (tmp_path / "trace.json").read_text().splitlines()[1:]]
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    assert set(spans) == {"write", "encode", "commit"}
    for span in spans.values():
        assert began <= span["ts"] / 1e6 <= (span["ts"] + span["dur"]) / 1e6 <= ended
        assert span["args"]["tokens"] == 300


PARENT = """
import sys
from tasks.encoder_crew import EncoderCrew
from tasks.shared_memory import SharedMemory
from tasks.trace import Trace

crew = EncoderCrew(*sys.argv[1:], SharedMemory(1 << 20), threads=4, takes_split=False,
                   on_commit=print, trace=Trace(None))
print("started", flush=True)
sys.stdin.read()
"""


def test_none_outlives_a_parent_that_is_killed(store: Store) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(store.path), SPEC.digest()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"started\n"
    children = psutil.Process(parent.pid).children()
    assert len(children) == 1
    parent.kill()
    parent.communicate()
    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
