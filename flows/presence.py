"""A run that is alive says so, where the server took it for dead.

A server that was away has missed heartbeats (`crash_detection`), and when it is back it marks every run as crashed that
it has not heard of since. The run itself knows better.
"""

import contextlib
import threading
from collections.abc import Iterator
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.context import TagsContext
from prefect.states import Running

_LOOK_SECONDS = 20.0
_MESSAGE = "goes on: it was the server that could not hear it"


@contextlib.contextmanager
def present(flow_run_id: UUID | None) -> Iterator[None]:
    """Look every 20 s, while within, whether the server takes the run for crashed, and correct it.

    Its tasks get none of its tags: a task with a tag asks the server for a slot first, and fails where it is away.
    """
    over = threading.Event()
    if flow_run_id is not None:
        threading.Thread(target=_keep_correcting, args=(flow_run_id, over), name="presence", daemon=True).start()
    try:
        with TagsContext(current_tags=set()):
            yield
    finally:
        over.set()


def _keep_correcting(flow_run_id: UUID, over: threading.Event) -> None:
    while not over.wait(_LOOK_SECONDS):
        with contextlib.suppress(httpx.HTTPError):  # the server is away: there is a next time
            correct(flow_run_id, over)


def correct(flow_run_id: UUID, over: threading.Event) -> None:
    """Have a run that is marked as crashed run again, unless it is over by now."""
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run_id).state
        if state is not None and state.type is StateType.CRASHED and not over.is_set():
            client.set_flow_run_state(flow_run_id, Running(message=_MESSAGE))
