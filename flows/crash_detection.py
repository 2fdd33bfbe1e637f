"""Runs whose process is gone are marked as crashed by Prefect's server: its automations miss their heartbeats.

Nothing of ours has to be alive for that. Only runs with our tag are watched, since those of others send heartbeats less
often, or none. An automation is found again by its name.
"""

from contextlib import AbstractContextManager
from datetime import timedelta

from prefect import tags
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.settings import get_current_settings

# A run that has it sends heartbeats at least as often as `HEARTBEAT_SECONDS`.
TAG = "aerie"
HEARTBEAT_SECONDS = 30  # no less is possible with Prefect
# The server looks every 5 s, and the state of a run must be right within 60.
SILENCE_SECONDS = 50
# To import all that a run needs takes seconds, and half a minute on a machine that is busy. One that takes longer is
# marked too early, and runs all the same: Prefect lets it (tried in 3.9.1).
START_SECONDS = 50

_HEARTBEAT = "prefect.flow-run.heartbeat"
_RUNNING = "prefect.flow-run.Running"
_CANCELLING = "prefect.flow-run.Cancelling"
# A star stands for one character or more: those of our own names.
_ENDS = {f"prefect.flow-run.{state}" for state in ("Completed", "Completed*", "Failed", "Cancelled", "Crashed")}
_WAITS = {f"prefect.flow-run.{state}" for state in ("Scheduled", "AwaitingRetry", "AwaitingConcurrencySlot", "Paused")}
_STARTS = {f"prefect.flow-run.{state}" for state in ("Pending", "Submitting")}


def watched_tags() -> list[str]:
    """Return the tag, if the heartbeats of what this process starts come often enough."""
    seconds = get_current_settings().flows.heartbeat_frequency
    return [TAG] if seconds is not None and seconds <= HEARTBEAT_SECONDS else []


def watched() -> AbstractContextManager[object]:
    """Have the runs that are started within watched."""
    return tags(*watched_tags())


def automations() -> list[AutomationCore]:
    """Return what the server is to do: with runs that fall silent, that never begin, that nobody cancels."""
    return [
        _mark(
            "aerie: runs that fall silent",
            f"no heartbeat for {SILENCE_SECONDS} s: the process or its machine is gone; the next run continues",
            after={_HEARTBEAT, _RUNNING},
            expect={_HEARTBEAT, _CANCELLING, *_ENDS, *_WAITS},
            seconds=SILENCE_SECONDS,
        ),
        _mark(
            "aerie: runs that never begin",
            f"taken by a worker, and not begun within {START_SECONDS} s: the worker or its machine is gone",
            after=_STARTS,
            expect={_RUNNING, _CANCELLING, *_ENDS, *_WAITS},
            seconds=START_SECONDS,
        ),
        _mark(  # from there Prefect lets a run become cancelled, and nothing else
            "aerie: runs that nobody cancels",
            f"not ended {SILENCE_SECONDS} s after it was cancelled: the worker or its machine is gone",
            after={_CANCELLING},
            expect=_ENDS,
            seconds=SILENCE_SECONDS,
            state=StateType.CANCELLED,
        ),
    ]


def ensure(client: SyncPrefectClient, automation: AutomationCore) -> str:
    """Make an automation, or bring it up to date; says which."""
    found = client.read_automations_by_name(automation.name)
    if not found:
        client.create_automation(automation)
        return "made"
    client.update_automation(found[0].id, automation)
    return "up to date"


def remove(client: SyncPrefectClient, automation: AutomationCore) -> str:
    """Remove an automation; says whether there was one."""
    found = client.read_automations_by_name(automation.name)
    for one in found:
        client.delete_automation(one.id)
    return "removed" if found else "was not there"


def _mark(
    name: str,
    message: str,
    *,
    after: set[str],
    expect: set[str],
    seconds: int,
    state: StateType = StateType.CRASHED,
) -> AutomationCore:
    return AutomationCore(
        name=name,
        description=f"Marks runs with the tag {TAG} as {state.value.lower()}: {message}",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {"prefect.resource.id": f"prefect.tag.{TAG}", "prefect.resource.role": "tag"}
            ),
            for_each={"prefect.resource.id"},
            after=after,
            expect=expect,
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[ChangeFlowRunState(name=state.value.capitalize(), state=state, message=message, force=False)],
    )
