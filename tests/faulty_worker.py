"""A worker whose real engine misbehaves as the variable FAULTS says; run in the place of tasks.worker by tests alone.

FAULTS is a JSON object: `oom_above` tokens in a batch; `nan`, `zero`, `short`, `leak`: first token ids of samples whose
states become NaN, zero, a row too few, or another row's when they share a batch; `hang` and `exit`: a file, and at
the first forward without that file it is made and the worker hangs or ends.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import tasks.worker
from tasks.engine.errors import EngineOutOfMemoryError, EngineStateError

FAULTS: dict[str, Any] = json.loads(os.environ["FAULTS"])


class FaultyEngine:
    """A real engine, and the faults put into it once its canary has passed."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def forward(self, sequences: Sequence[Any]) -> torch.Tensor:
        self._die_once()
        if sum(map(len, sequences)) > FAULTS.get("oom_above", 1 << 60):
            raise EngineOutOfMemoryError("no room, says the test")
        states = self._engine.forward(sequences).clone()
        for ids, rows in zip(sequences, torch.split(states, [len(ids) for ids in sequences]), strict=True):
            self._spoil(int(ids[0]), rows, is_alone=len(sequences) == 1)
        return states

    def _spoil(self, first_token: int, rows: torch.Tensor, *, is_alone: bool) -> None:
        if first_token in FAULTS.get("nan", []):
            rows[-1, 1, 3] = float("nan")
        if first_token in FAULTS.get("zero", []):
            rows[0, 2] = 0
        if first_token in FAULTS.get("short", []):
            raise EngineStateError(f"a row too few for {len(rows)} tokens, says the test")
        if first_token in FAULTS.get("leak", []) and not is_alone:
            rows.copy_(rows.roll(1, 0))

    def _die_once(self) -> None:
        for how, action in (("exit", lambda: os._exit(3)), ("hang", lambda: time.sleep(3600))):
            if how in FAULTS and not Path(FAULTS[how]).exists():
                Path(FAULTS[how]).touch()
                action()


def main() -> None:
    check, tasks.worker._check_engine = tasks.worker._check_engine, lambda engine: check(engine._engine)
    load = tasks.worker.load_engine
    tasks.worker.load_engine = lambda options: FaultyEngine(load(options))
    tasks.worker.main()


if __name__ == "__main__":
    main()
