"""The engine processes of a run: as many as device groups, each busy with one unit at a time."""

import contextlib
import queue
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tasks import messages
from tasks.engine.devices import DeviceGroup
from tasks.engine_counts import EngineCounts
from tasks.engine_process import EngineProcess
from tasks.errors import RunEndedError


class EnginePool:
    """Engine processes that wait for work; ends them all when the run does, whatever ends it."""

    def __init__(self, start: messages.Start, groups: Sequence[DeviceGroup], log_folder: Path) -> None:
        self._engines = [EngineProcess(start, group, log_folder / f"engine-{group.name}.log") for group in groups]
        self._idle: queue.Queue[EngineProcess] = queue.Queue()
        self._ended = False
        for engine in self._engines:
            self._idle.put(engine)

    @property
    def counts(self) -> list[EngineCounts]:
        """What each engine has done so far."""
        return [engine.counts for engine in self._engines]

    @contextlib.contextmanager
    def lease(self) -> Iterator[EngineProcess]:
        """Take an engine for one unit of work; waits while all are busy.

        Raises:
            RunEndedError: the run is over.
        """
        engine = self._idle.get()
        try:
            if self._ended:
                raise RunEndedError("the run has ended; start another")
            yield engine
        finally:
            self._idle.put(engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._ended = True
        for engine in self._engines:
            engine.close() if error is None else engine.kill()
