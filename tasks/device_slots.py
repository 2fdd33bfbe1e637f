"""Slots of device groups on Prefect's server: a global concurrency limit each, made by `aerie deploy`.

The GPUs themselves are claimed by the engine process (`tasks.engine.claims`), and kept until the run has no more work.
So long the run holds the slot, which shows that to people, and whoever else asks for it waits. A server that is away
keeps nobody from work: a slot that is not released expires.
"""

import contextlib
import contextvars
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.sync import concurrency

LEASE_SECONDS = 60.0
_LOOK_SECONDS = 5.0


def limit_name(group: str) -> str:
    """Return the name of the limit of a device group of this host."""
    return f"aerie:{socket.gethostname()}:{group}"


class DeviceSlots:
    """The slots that a run holds; none at all where it is not the run of a deployment.

    Args:
        flow_run_id: the run that holds them; None where there is no server that may have such slots.
    """

    def __init__(self, flow_run_id: UUID | None) -> None:
        self._holder = None if flow_run_id is None else ConcurrencyLeaseHolder(type="flow_run", id=flow_run_id)
        self._held: dict[str, contextlib.ExitStack] = {}
        self._is_over = threading.Event()

    def hold(self, group: str, log: Callable[[str], object]) -> None:
        """Take the slot of a group, unless it is held already; waits while another run has it."""
        if self._holder is None or group in self._held or not _server_answers():
            return
        log(f"{group}: takes the slot {limit_name(group)}")
        request = _Request(
            concurrency(limit_name(group), lease_duration=LEASE_SECONDS, strict=False, holder=self._holder)
        )
        while not request.has_answer(_LOOK_SECONDS):
            # Prefect 3.9.1 waits for ever for the answer of a server that goes meanwhile.
            if self._is_over.is_set() or not _server_answers():
                request.give_up()
                return
        self._held[group] = request.held

    def release(self, group: str) -> None:
        """Give the slot of a group back, if it is held."""
        held = self._held.pop(group, None)
        if held is None:
            return
        thread = threading.Thread(target=_close, args=(held,), name="release slot", daemon=True)
        thread.start()
        if _server_answers():  # else Prefect would try for minutes
            thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_over.set()
        for group in list(self._held):
            self.release(group)


class _Request:
    """A slot that is asked for, on a thread of its own.

    Attributes:
        held: gives the slot back when it is closed; empty where the server could not be asked.
    """

    def __init__(self, slot: contextlib.AbstractContextManager[None]) -> None:
        self.held = contextlib.ExitStack()
        self._lock = threading.Lock()
        self._is_wanted = True
        self._thread = threading.Thread(target=self._ask, args=(slot,), name="take slot", daemon=True)
        self._thread.start()

    def has_answer(self, seconds: float) -> bool:
        """Wait so long for the answer; says whether it is there."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def give_up(self) -> None:
        """Go without it; should it be given after all, it goes back."""
        with self._lock:
            self._is_wanted = False
        if self.has_answer(0):
            _close(self.held)

    def _ask(self, slot: contextlib.AbstractContextManager[None]) -> None:
        with contextlib.suppress(Exception):  # the server has gone just now: Prefect has no narrower name for that
            # In a context of its own: with that of a task, Prefect would give the slot back when the task ends.
            contextvars.Context().run(self.held.enter_context, slot)
        with self._lock:
            if not self._is_wanted:
                _close(self.held)


def _close(held: contextlib.ExitStack) -> None:
    with contextlib.suppress(Exception):  # as above; the lease runs out
        held.close()


def _server_answers() -> bool:
    return get_client(sync_client=True).api_healthcheck() is None
