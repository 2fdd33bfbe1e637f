"""Killing work on a store by SIGKILL, and judging what is left: at once, and when the work was done again."""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np
from crash_scenarios import SCENARIOS
from small_samples import DIGEST, count_copies, find_all, make_sample, name_of, name_samples, write_samples

import storage
from storage import init_store, open_store
from storage.errors import CorruptObjectError, StorageError
from storage.packs import compact

OURS = str(Path(storage.__file__).parent)
# Python's audit events of what changes a file system; they come before it happens.
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "open"}
WORK_SECONDS = 300

# At a line of ours; before a change of the file system, so also between fsync and rename; at any time, also in C.
Moment = Literal["line", "change", "time"]
MOMENTS: tuple[Moment, ...] = ("line", "change", "time")

# Quick, and safe in a process that has no other threads: do not kill from within a larger program.
_CONTEXT = multiprocessing.get_context("fork")


@dataclass
class Outcome:
    """What one run left.

    Attributes:
        scenario: the work.
        moment: how the moment was chosen.
        was_killed: whether it was at work when it was killed.
        place: the line or the change before which it was killed, if that is known.
        lost: samples that were not in the store, or not as they were written: after the kill or in the end.
        extra: samples that were in the store in the end and should not.
        duplicate: further copies of samples in the end.
        invalid: what a check found in the end; after the kill too, where the work does not begin with damage.
        leftover: staging in the end.
    """

    scenario: str
    moment: Moment
    was_killed: bool = False
    place: str = ""
    lost: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    duplicate: int = 0
    invalid: list[str] = field(default_factory=list)
    leftover: int = 0

    @property
    def is_right(self) -> bool:
        """Say whether nothing is wrong."""
        return not (self.lost or self.extra or self.duplicate or self.invalid or self.leftover)


class Crashes:
    """Kill work on copies of prepared stores.

    Args:
        folder: where the stores are made.
        seed: of the random moments.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self._folder = folder
        self._dice = np.random.default_rng(seed)
        self._lengths: dict[tuple[str, Moment], float] = {}

    def run(self, scenario: str, moment: Moment) -> Outcome:
        """Kill the work once, at a random moment, and judge what is left."""
        length = self._length(scenario, moment)
        fatal = self._dice.uniform(0, length) if moment == "time" else int(self._dice.integers(1, int(length) + 1))
        outcome = Outcome(scenario, moment)
        store = self._copy(scenario)
        outcome.was_killed, outcome.place = _run(scenario, store, moment, fatal)[:2]
        for judge in (_judge_at_once, _judge_rerun):
            try:
                judge(store, outcome)
            except CorruptObjectError as error:  # so much that nothing more can be said
                outcome.invalid.append(str(error))
        shutil.rmtree(store)
        return outcome

    def _copy(self, scenario: str) -> Path:
        template, store = self._folder / scenario, self._folder / "killed"
        if not template.exists():
            SCENARIOS[scenario].prepare(template)
        return Path(shutil.copytree(template, store))

    def _length(self, scenario: str, moment: Moment) -> float:
        """Return how many lines, changes or seconds the work has when nobody kills it."""
        key = (scenario, moment)
        if key not in self._lengths:
            store = self._copy(scenario)
            *_, length = _run(scenario, store, moment, float("inf"))
            self._lengths[key] = length
            shutil.rmtree(store)
        return self._lengths[key]


def _run(scenario: str, store: Path, moment: Moment, fatal: float) -> tuple[bool, str, float]:
    """Work in a process of its own; return whether it was killed, where, and how long it was."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_work, args=(scenario, store, moment, fatal, theirs))
    process.start()
    theirs.close()
    place, length = "", 0.0
    try:
        ours.recv()  # it begins
        if moment == "time" and fatal != float("inf"):
            process.join(fatal)
            process.kill()
        place, length = ours.recv()
    except EOFError:  # killed from here
        pass
    process.join(WORK_SECONDS)
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"{scenario} ended with {process.exitcode}, neither done nor killed")
    return process.exitcode != 0, place, length


def _work(scenario: str, store: Path, moment: Moment, fatal: float, parent: Connection) -> None:
    count = 0

    def step(place: str) -> None:
        nonlocal count
        count += 1
        if count == fatal:
            parent.send((place, count))
            os.kill(os.getpid(), signal.SIGKILL)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            step(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        return trace

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        is_change = event in CHANGES and not (event == "open" and arguments[1] in {"r", "rb", None})
        if is_change and str(store) in str(arguments[0]):
            step(event)

    parent.send(None)
    started = time.perf_counter()
    if moment == "line":
        threading.settrace(trace)
        sys.settrace(trace)
    elif moment == "change":
        sys.addaudithook(audit)
    SCENARIOS[scenario].work(store)
    sys.settrace(None)
    parent.send(("", time.perf_counter() - started if moment == "time" else count))


def _judge_at_once(store: Path, outcome: Outcome) -> None:
    scenario = SCENARIOS[outcome.scenario]
    if scenario.wanted:  # it begins with damage, which keeps a store from opening
        return
    outcome.lost += _find_lost(store, scenario.always)
    outcome.invalid += [finding.detail for finding in find_all(store)]


def _judge_rerun(store: Path, outcome: Outcome) -> None:
    scenario = SCENARIOS[outcome.scenario]
    scenario.work(store)
    outcome.lost += _find_lost(store, scenario.always)
    outcome.extra += _find_extra(store, scenario.after)
    if scenario.wanted:
        name_samples(store, scenario.wanted)
        write_samples(store, scenario.wanted)
    init_store(store)
    compact(store, DIGEST)
    wanted = scenario.wanted or scenario.after
    outcome.lost += _find_lost(store, wanted)
    outcome.extra += _find_extra(store, wanted)
    outcome.duplicate = count_copies(store) - len(open_store(store))
    outcome.invalid += [finding.detail for finding in find_all(store)]
    outcome.leftover = sum(1 for _ in (store / "tmp").iterdir())


def _find_lost(store: Path, numbers: Iterable[int]) -> list[str]:
    found = open_store(store)
    return [name_of(number) for number in numbers if not _is_there(found, number)]


def _is_there(found: storage.Store, number: int) -> bool:
    name, (input_ids, states) = name_of(number), make_sample(number)
    try:
        sample = found[name]
        return np.array_equal(sample.input_ids, input_ids) and sample.hidden_states().tobytes() == states.tobytes()
    except (CorruptObjectError, StorageError):
        return False


def _find_extra(store: Path, numbers: Iterable[int]) -> list[str]:
    return sorted(set(open_store(store)) - set(map(name_of, numbers)))
