"""A worker whose real engine misbehaves as the variable FAULTS says; run in the place of tasks.worker by tests alone.

FAULTS is a JSON object. Of samples, by their hashes: `nan`, `inf`, `zero`, `short` (a row too few) and `leak` (others'
rows, in a batch). Of engines, all or the one whose log is named `engine`: `oom_above` tokens in a batch; `canary` (its
layers are shifted); `grow` by so many bytes a forward; `pause` for ever after so many forwards; `stops`: a list of
["exit", "hang" or "lose" (a rank), file, n], of which a process does the first whose file is not there yet, after n
forwards, and makes the file. For a file `go` beside the diary wait the canary that fails and, with `wait`, the other
engines in their first forward; `oom_above` makes it for a sample alone. What engines do goes to the file `diary`, one
JSON list a line: the engine, its process id, the time, a word, hashes.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import tasks.engine_start
import tasks.worker
from storage.digests import sample_hash
from tasks.engine.errors import EngineOutOfMemoryError, EngineStateError

FAULTS: dict[str, Any] = json.loads(os.environ["FAULTS"])
GO = Path(FAULTS.get("diary", "diary")).with_name("go")
OF_ENGINES = ("oom_above", "canary", "grow", "pause", "stops")
NAME = Path("/proc/self/fd/1").readlink().stem


def log(word: str, hashes: Sequence[str] = ()) -> None:
    """Write in one piece, since all engines write here."""
    if "diary" in FAULTS:
        line = json.dumps([NAME, os.getpid(), time.time(), word, list(hashes)]) + "\n"
        with Path(FAULTS["diary"]).open("ab", buffering=0) as diary:
            diary.write(line.encode())


def wait_for_go() -> None:
    while not GO.exists():
        time.sleep(0.01)


class FaultyEngine:
    """A real engine, and the faults put into it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._forwards = 0
        self._kept: list[Any] = []
        is_mine = FAULTS.get("engine") in (None, NAME)
        self._faults = {name: fault for name, fault in FAULTS.items() if is_mine or name not in OF_ENGINES}
        self._waits = "wait" in FAULTS and not is_mine
        log("start")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def check(self, check: Callable[[Any], None]) -> None:
        """Run the canary on the real engine, or one with shifted layers."""
        if "canary" in self._faults:
            wait_for_go()
        check(ShiftedEngine(self._engine) if "canary" in self._faults else self._engine)

    def forward(self, sequences: Sequence[Any]) -> torch.Tensor:
        hashes = [sample_hash(ids) for ids in sequences]
        self._forwards += 1
        self._stop()
        log("forward", hashes)
        if sum(map(len, sequences)) > self._faults.get("oom_above", 1 << 60):
            log("oom_above")
            if len(sequences) == 1:
                GO.touch()
            raise EngineOutOfMemoryError("no room, says the test")
        self._kept.append(np.ones(self._faults.get("grow", 0), np.uint8))
        states = self._engine.forward(sequences).clone()
        for name, rows in zip(hashes, torch.split(states, [len(ids) for ids in sequences]), strict=True):
            self._spoil(name, rows, is_alone=len(sequences) == 1)
        return states

    def _spoil(self, name: str, rows: torch.Tensor, *, is_alone: bool) -> None:
        if name in self._faults.get("nan", []):
            rows[-1, 1, 3] = float("nan")
        if name in self._faults.get("inf", []):
            rows[0, -1, 0] = float("inf")
        if name in self._faults.get("zero", []):
            rows[0, 2] = 0
        if name in self._faults.get("short", []):
            raise EngineStateError(f"a row too few for {len(rows)} tokens, says the test")
        if name in self._faults.get("leak", []) and not is_alone:
            rows.copy_(rows.roll(1, 0))

    def _stop(self) -> None:
        if self._waits:
            wait_for_go()
        if self._forwards > self._faults.get("pause", 1 << 60):
            time.sleep(3600)
        ahead = [stop for stop in self._faults.get("stops", []) if not Path(stop[1]).exists()]
        if ahead and self._forwards > ahead[0][2]:
            how, file, _ = ahead[0]
            log(how)
            Path(file).write_text(str(os.getpid()))
            if how == "exit":
                os._exit(3)
            if how == "hang":
                time.sleep(3600)
            for rank in psutil.Process().children():
                rank.kill()


class ShiftedEngine:
    """An engine that takes each layer for the next."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, sequences: Sequence[Any]) -> torch.Tensor:
        return self._engine.forward(sequences).roll(1, 1)


def main() -> None:
    start = tasks.engine_start
    load, check = start.load_engine, start._check
    start.load_engine = lambda *arguments: FaultyEngine(load(*arguments))
    start._check = lambda engine: engine.check(check)
    tasks.worker.main()


if __name__ == "__main__":
    main()
