"""Parts as runs on a real Prefect server: given out, tried again, given up; the nodes' part is played by this test."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled, Completed, Crashed, Failed, State

from flows import part_runs, work_pool
from flows.deployments import list_deployments
from flows.part import Part
from flows.part_runs import FAILURES, TRIES, PartRuns, Share
from tasks.errors import PartError

SETTINGS = {
    "model_and_layers": {"model": "/m"},
    "data_files": {"data": ["/d.jsonl"]},
    "store_and_machine": {"store": "/s"},
}
OF_PARTS = FlowFilter(name=FlowFilterName(any_=["extract-part"]))

# What becomes of a run: by the number of its part and of its try, from 1; None is that somebody deletes it.
Fate = Callable[[int, int], State | None]


@pytest.fixture(autouse=True)
def deployed(with_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:  # noqa: ARG001 - it runs
    monkeypatch.setattr(part_runs, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(part_runs, "_GRACE", timedelta())
    offered = list_deployments({})
    work_pool.deploy(offered, [], keep_schedules=True)
    yield
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_filter=OF_PARTS):
            client.delete_flow_run(run.id)
    work_pool.undeploy(offered)


def make_shares(count: int) -> list[Share]:
    part = Part(run_id="r/parts/0001", tokens_digest="t", spec_digest="s", first=0, stop=1)
    return [
        Share(part.model_copy(update={"run_id": f"r/parts/{n:04}", "first": n, "stop": n + 1}), n, 10 * n)
        for n in range(1, count + 1)
    ]


@contextmanager
def nodes(fate: Fate) -> Iterator[None]:
    """Take runs as they are given out, and let each meet its fate."""
    over = threading.Event()

    def work() -> None:
        with get_client(sync_client=True) as client:
            while not over.wait(0.1):
                for run in client.read_flow_runs(flow_filter=OF_PARTS):
                    if run.state is not None and run.state.is_scheduled():
                        settle(client, run)

    def settle(client: SyncPrefectClient, run: FlowRun) -> None:
        number, tries = map(int, run.parameters["part"]["run_id"].removeprefix("r/parts/").split("-"))
        state = fate(number, tries)
        if state is None:
            client.delete_flow_run(run.id)
        elif not state.is_scheduled():
            client.set_flow_run_state(run.id, state, force=True)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def hand_out(shares: list[Share], said: list[str]) -> list[int]:
    with closing(PartRuns(SETTINGS, shares, f"test {id(shares)}", said.append).done()) as done:
        return [share.number for share in done]


def all_runs() -> list[FlowRun]:
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(flow_filter=OF_PARTS)


def test_what_dies_fails_or_is_deleted_is_given_out_again_and_told_so() -> None:
    fates: dict[tuple[int, int], State | None] = {
        (1, 1): Crashed(message="no heartbeat"),
        (2, 1): Failed(message="this\nnode is broken"),
        (2, 2): Crashed(),
        (3, 1): None,
    }
    shares, said = make_shares(4), list[str]()
    with nodes(lambda *which: fates.get(which, Completed())):
        assert sorted(hand_out(shares, said)) == [1, 2, 3, 4]
    assert [len(share.runs) for share in shares] == [2, 3, 2, 1]
    assert shares[1].reports() == [f"r/parts/0002-{number}" for number in (1, 2, 3)]
    assert "part 2/4 Failed: this node is broken; tried again" in said
    parts = {run.parameters["part"]["run_id"]: run for run in all_runs()}
    assert {name: run.parameters["part"]["is_again"] for name, run in parts.items()} == {
        name: not name.endswith("-1") for name in parts
    }
    assert parts["r/parts/0004-1"].name == "part 4/4: 40 tokens"
    assert parts["r/parts/0004-1"].parameters["part"]["first"] == 4


def test_a_part_that_always_fails_ends_the_run_and_what_is_left_is_cancelled() -> None:
    shares = make_shares(2)
    waits = State(type="SCHEDULED", name="Scheduled")
    with (
        nodes(lambda number, _: Failed(message="no such layer") if number == 1 else waits),
        pytest.raises(PartError, match=f"^part 1/2 Failed: no such layer; it was the last of {FAILURES} runs"),
    ):
        hand_out(shares, [])
    assert sorted(run.state_name or "" for run in all_runs()) == ["Cancelled", *["Failed"] * FAILURES]


def test_one_that_kills_whoever_takes_it_does_so_at_last() -> None:
    shares = make_shares(1)
    with nodes(lambda *_: Crashed()), pytest.raises(PartError, match=f"the last of {TRIES} runs"):
        hand_out(shares, [])
    assert len(shares[0].runs) == TRIES


def test_a_person_who_cancels_a_part_ends_the_run() -> None:
    with nodes(lambda *_: Cancelled()), pytest.raises(PartError, match=r"part 1/1 Cancelled: .*the rest is cancelled"):
        hand_out(make_shares(1), [])
