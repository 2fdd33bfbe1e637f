"""Parts of a job as runs of a deployment, which the workers of a pool pull: handed out, watched, tried again, ended."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Failed

from flows.errors import SettingsError
from flows.part import Part
from flows.progress import format_count
from tasks.errors import PartError

DEPLOYMENT = "extract-part/extract-part"
# A node that is broken fails every part that it takes, so one failure says little of the part. One that dies says
# nothing of it, but for a part that kills its nodes.
FAILURES = 3
TRIES = 10
# More than nodes can be at work on; all at once would keep other runs of the queue waiting, and the server busy.
AHEAD = 64
_LOST: State[Any] = Failed(message="its run is gone from the server")
_run_deployment = cast("Callable[..., FlowRun]", run_deployment)
_LOOK_SECONDS = 5.0
# A run that the server took for dead, and is not, says so within 20 s (flows.presence).
_GRACE = timedelta(seconds=25)
_IDLE_SECONDS = 60.0


@dataclass
class Share:
    """One part of the job, and the runs that it had.

    Attributes:
        part: as its first run is given it.
        number: from 1.
        tokens: of the samples that the store lacked.
        runs: all of them, the last one last.
        is_started: whether a node has taken one.
        failures: how many have failed.
    """

    part: Part
    number: int
    tokens: int
    runs: list[UUID] = field(default_factory=list)
    is_started: bool = False
    failures: int = 0

    def next_part(self) -> Part:
        """Return what the next run is given."""
        tries = len(self.runs) + 1
        again = {"run_id": f"{self.part.run_id}-{tries}", "is_again": tries > 1}
        return self.part.model_copy(update=again)

    def reports(self) -> list[str]:
        """Return the run ids under which its runs left reports, if they did."""
        return [f"{self.part.run_id}-{number}" for number in range(1, len(self.runs) + 1)]


class PartRuns:
    """The runs of all parts.

    Args:
        settings: of all nodes.
        shares: the parts.
        name: of the run that hands them out, distinct.
        log: gets lines for people.
    """

    def __init__(
        self, settings: dict[str, Any], shares: Sequence[Share], name: str, log: Callable[[str], object]
    ) -> None:
        self._settings = settings
        self._shares = shares
        self._name = name
        self._log = log
        self._waiting = deque(shares)
        self._out: dict[UUID, Share] = {}

    def done(self) -> Generator[Share]:
        """Hand out the parts, and give each as it is done; what is left when the caller stops is cancelled.

        Raises:
            PartError: a part has failed too often, or somebody cancelled it.
        """
        began = time.monotonic()
        try:
            while self._waiting or self._out:
                with contextlib.suppress(httpx.HTTPError):  # the server is away: there is a next time
                    self._hand_out()
                time.sleep(_LOOK_SECONDS)
                yield from self._settle_all()
                if began and time.monotonic() - began > _IDLE_SECONDS:
                    began = self._warn_if_idle()
        finally:
            self._cancel()

    def _hand_out(self) -> None:
        while self._waiting and len(self._out) < AHEAD:
            share = self._waiting[0]
            run = _run_deployment(
                DEPLOYMENT,
                _sync=True,  # else a notebook gets a coroutine
                parameters={"settings": self._settings, "part": share.next_part().model_dump()},
                flow_run_name=f"part {share.number}/{len(self._shares)}: {share.tokens:,} tokens",
                timeout=0,
                # A request that was answered by nobody is sent again.
                idempotency_key=f"{self._name} {share.number} {len(share.runs)}",
            )
            self._waiting.popleft()
            share.runs.append(run.id)
            self._out[run.id] = share

    def _settle_all(self) -> list[Share]:
        """Take in what has become of the runs that are out; the shares that are done, none while the server is away."""
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(self._out)))
        try:
            with get_client(sync_client=True) as client:
                found = {run.id: run for run in client.read_flow_runs(flow_run_filter=wanted, limit=AHEAD)}
        except httpx.HTTPError:
            return []
        return [share for run_id in list(self._out) if (share := self._settle(run_id, found.get(run_id))) is not None]

    def _settle(self, run_id: UUID, run: FlowRun | None) -> Share | None:
        """Take in what has become of a run; None is one that somebody has deleted."""
        share, state = self._out[run_id], _LOST if run is None else run.state
        if state is None or not state.is_final():
            share.is_started = share.is_started or (run is not None and run.start_time is not None)
            return None
        if state.type is StateType.CRASHED and datetime.now(UTC) - state.timestamp < _GRACE:
            return None
        del self._out[run_id]
        if state.type is StateType.COMPLETED:
            return share
        self._try_again(share, state)
        return None

    def _try_again(self, share: Share, state: State[Any]) -> None:
        line = f"part {share.number}/{len(self._shares)} {state.name}: {' '.join((state.message or '').split())}"
        if state.type is StateType.CANCELLED:
            raise PartError(f"{line}; the rest is cancelled, the next run continues")
        share.failures += state.type is StateType.FAILED
        if share.failures >= FAILURES or len(share.runs) >= TRIES:
            tries = format_count(len(share.runs), "run")
            raise PartError(f"{line}; it was the last of {tries} of this part, whose logs are in Prefect's pages")
        self._log(f"{line}; tried again")
        self._waiting.append(share)  # behind the others: a broken node is idle most often, and would take it at once

    def _warn_if_idle(self) -> float:
        """Say once that nobody takes parts; return 0.0: there is no more to look for."""
        if not any(share.is_started for share in self._shares):
            self._log(
                f"no node has taken a part for {_IDLE_SECONDS:.0f} s; start aerie worker --queue gpu --limit 1 on each"
            )
        return 0.0

    def _cancel(self) -> None:
        """Cancel every run that is not over: also one that was taken for dead and came back."""
        ours = [run for share in self._shares for run in share.runs]
        for start in range(0, len(ours), AHEAD):
            wanted = FlowRunFilter(id=FlowRunFilterId(any_=ours[start : start + AHEAD]))
            with contextlib.suppress(httpx.HTTPError, ObjectNotFound), get_client(sync_client=True) as client:
                for run in client.read_flow_runs(flow_run_filter=wanted, limit=AHEAD):
                    if run.state is not None and not run.state.is_final():
                        client.set_flow_run_state(run.id, Cancelling())


def require_deployment() -> None:
    """Refuse to begin where the server does not know what nodes are to run.

    Raises:
        SettingsError: with the cure.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(DEPLOYMENT)
        except ObjectNotFound as error:
            raise SettingsError(
                f"Prefect's server has no deployment {DEPLOYMENT}; run aerie deploy, and on each node aerie worker "
                "--queue gpu --limit 1"
            ) from error
