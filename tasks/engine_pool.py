"""The engine processes of a run: as many as device groups, each busy with one unit at a time."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tasks import messages
from tasks.engine.devices import DeviceGroup
from tasks.engine.errors import DeviceTakenError
from tasks.engine_counts import EngineCounts
from tasks.engine_process import EngineProcess, OnEvent
from tasks.errors import RunEndedError

_LOOK_SECONDS = 1.0


class Lease:
    """An engine for one unit of work, until it is ended."""

    def __init__(self, engine: EngineProcess, give_back: Callable[[EngineProcess], None]) -> None:
        self.engine = engine
        self._give_back: Callable[[EngineProcess], None] | None = give_back

    def end(self) -> None:
        """Give the engine back, if it has not been."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self.engine)


class EnginePool:
    """Engine processes that wait for work; ends them all when the run does, whatever ends it.

    Args:
        start: how an engine process starts.
        groups: the devices of each.
        log_folder: where each writes its log.
        device_wait_seconds: how long to wait when other runs have the devices of all engines.
    """

    def __init__(
        self, start: messages.Start, groups: Sequence[DeviceGroup], log_folder: Path, device_wait_seconds: float = 0.0
    ) -> None:
        self._engines = [EngineProcess(start, group, log_folder / f"engine-{group.name}.log") for group in groups]
        self._idle = list(self._engines)
        self._changed = threading.Condition()
        self._ended = False
        self._wait_seconds = device_wait_seconds
        self._shut_out_since: float | None = None
        self._told: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the run is over, and the engines are being ended."""
        return self._ended

    @property
    def counts(self) -> list[EngineCounts]:
        """What each engine has done so far."""
        return [engine.counts for engine in self._engines]

    @contextlib.contextmanager
    def lease(self, on_event: OnEvent) -> Iterator[Lease]:
        """Take an engine for one unit of work; waits while all are busy, or other runs have the devices of the rest.

        To end the lease once the unit is computed lets the next one begin while states are written.

        Raises:
            RunEndedError: the run is over.
            DeviceTakenError: other runs had the devices of all engines for longer than this one waits.
        """
        lease = Lease(self._take(on_event), self._give_back)
        try:
            yield lease
        finally:
            lease.end()

    def _give_back(self, engine: EngineProcess) -> None:
        with self._changed:
            self._idle.append(engine)
            self._changed.notify_all()

    def _take(self, on_event: OnEvent) -> EngineProcess:
        with self._changed:
            while not self._ended:
                holders = {engine: holder for engine in self._idle if (holder := engine.find_holder())}
                free = [engine for engine in self._idle if engine not in holders]
                if free:
                    self._shut_out_since = None
                    self._idle.remove(free[0])
                    return free[0]
                self._wait(holders, on_event)
        raise RunEndedError("the run has ended; start another")

    def _wait(self, holders: dict[EngineProcess, str], on_event: OnEvent) -> None:
        """Wait until an engine comes back, or for a moment if other runs have the devices of those that are here."""
        if len(holders) < len(self._engines):
            self._shut_out_since = None
        else:
            self._refuse_after_limit("; ".join(holders.values()))
        for engine, holder in holders.items():
            if holder not in self._told:
                self._told.add(holder)
                on_event(messages.Phase(f"waits, {holder}", engine.group.name))
        self._changed.wait(_LOOK_SECONDS if holders else None)

    def _refuse_after_limit(self, holders: str) -> None:
        now = time.monotonic()
        self._shut_out_since = self._shut_out_since or now
        if now - self._shut_out_since >= self._wait_seconds:
            raise DeviceTakenError(
                f"{holders}; this run waited {self._wait_seconds:,.0f} s for it; choose other devices, or raise "
                "device_wait_seconds"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        for engine in self._engines:
            engine.retire()
        for engine in self._engines:
            engine.close() if error is None else engine.kill()
