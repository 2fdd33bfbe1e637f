"""Every row ends in exactly one column, in whatever order engines tell, die and tell again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.accounting import Ledger
from flows.progress import LineProgress
from storage.findings import Finding
from tasks.engine_counts import EngineCounts
from tasks.messages import Committed, Message, Phase, Quarantined, UnitDone
from tasks.planning import Plan

NAMES = "abcdefgh"


def make_ledger(**given: Any) -> tuple[Ledger, list[str]]:
    """Make a ledger of 14 rows: 8 samples to compute, 2 reused, 1 duplicate, 3 rejected; and what it says."""
    said: list[str] = []
    lengths = np.full(len(NAMES), 10)
    plan = Plan(
        rows=11, duplicates=1, stored=np.arange(8, 10), missing=np.arange(len(NAMES)), lengths=lengths, tokens=100,
        raw_bytes=0, stored_bytes=0, free_bytes=0,
    )  # fmt: skip
    rejected = {"too_long": 2, "invalid_json": 1}
    return Ledger(LineProgress(said.append), rows_in=14, rejected=rejected, plan=plan, **given), said


def committed(name: str, *, existed: bool = False) -> Committed:
    return Committed(name, num_tokens=10, raw_bytes=0, stored_bytes=0, existed=existed)


def quarantined(name: str, reason: str = "non_finite") -> Quarantined:
    return Quarantined(name, num_tokens=10, reason=reason, detail="of layer 2")


def total(rows: dict[str, Any]) -> int:
    columns = {key: value if isinstance(value, int) else sum(value.values()) for key, value in rows.items()}
    return sum(columns.values()) - columns["in"] - 2 * columns["split"]


def test_a_run_that_reached_nothing_has_everything_unfinished() -> None:
    ledger, _ = make_ledger()
    assert ledger.rows() == {
        "in": 14,
        "split": 0,
        "done": 0,
        "reused": 2,
        "duplicate": 1,
        "rejected": {"too_long": 2, "invalid_json": 1},
        "quarantined": {},
        "unfinished": 8,
    }


def test_a_run_without_a_plan_adds_up_too() -> None:
    ledger = Ledger(LineProgress(str), rows_in=14, rejected={"too_long": 2})
    assert ledger.rows()["unfinished"] == 12
    assert total(ledger.rows()) == 14


def test_what_another_process_stored_first_counts_as_reused() -> None:
    ledger, _ = make_ledger()
    ledger.on_event(committed("a"))
    ledger.on_event(committed("b", existed=True))
    assert (ledger.rows()["done"], ledger.rows()["reused"], ledger.tokens_done()) == (1, 3, 10)


def test_what_the_engine_that_took_over_tells_again_does_not_count_again() -> None:
    ledger, _ = make_ledger()
    ledger.on_event(committed("a"))
    ledger.on_event(committed("a", existed=True))
    assert (ledger.rows()["done"], ledger.rows()["reused"]) == (1, 2)


def test_a_sample_that_a_second_try_stored_is_no_longer_set_aside() -> None:
    ledger, _ = make_ledger(max_quarantined=8)
    ledger.on_event(quarantined("a", "out_of_memory"))
    assert ledger.rows()["quarantined"] == {"out_of_memory": 1}
    ledger.on_event(committed("a"))
    assert (ledger.rows()["quarantined"], ledger.rows()["done"], total(ledger.rows())) == ({}, 1, 14)


def test_what_fails_validation_is_no_longer_done() -> None:
    ledger, _ = make_ledger()
    for name in NAMES:
        ledger.on_event(committed(name))
    ledger.set_aside([Finding("a", "loose", "checksum", "bad"), Finding(None, "pack", "torn", "no index", "p")])
    rows = ledger.rows()
    assert (rows["done"], rows["quarantined"], rows["unfinished"]) == (7, {"checksum": 1}, 0)
    assert ledger.tokens_done() == 70
    assert ledger.quarantined["a"] == ("checksum", "bad")


EVENTS = st.lists(
    st.one_of(
        st.builds(committed, st.sampled_from(NAMES), existed=st.booleans()),
        st.builds(quarantined, st.sampled_from(NAMES), st.sampled_from(["non_finite", "out_of_memory"])),
        st.builds(Finding, st.sampled_from(NAMES), st.just("loose"), st.just("torn"), st.just("")),
    )
)


@settings(deadline=None)
@given(EVENTS)
def test_the_sum_is_always_exact(events: list[Message | Finding]) -> None:
    ledger, _ = make_ledger(max_quarantined=len(NAMES))
    settled: set[str] = set()
    for event in events:
        if isinstance(event, Finding):
            if event.sample_hash not in ledger.done:  # only what this run stored is validated
                continue
            ledger.set_aside([event])
        else:
            if isinstance(event, Quarantined) and event.sample_hash in ledger.done.keys() | ledger.found:
                continue  # an engine looks into the store before it computes
            ledger.on_event(event)
            settled.add(event.sample_hash)
        rows = ledger.rows()
        assert total(rows) == rows["in"] == 14
        assert rows["unfinished"] == len(NAMES) - len(settled)


def test_phases_and_times_of_engines_are_told() -> None:
    ledger, said = make_ledger()
    ledger.on_event(Phase("load model"))
    ledger.add_unit(UnitDone(1, 1.5, 0.25, 0, 0))
    ledger.add_unit(UnitDone(2, 1.0, 0.25, 0, 0))
    with ledger.timed("extract"):
        pass
    assert "engine: load model" in said
    assert (ledger.seconds["forward"], ledger.seconds["wait"]) == (2.5, 0.5)
    assert ledger.seconds["extract"] >= 0


def test_which_engine_it_is_is_told_where_there_are_several() -> None:
    ledger, said = make_ledger()
    ledger.engines = [EngineCounts("gpu-0"), EngineCounts("gpu-1")]
    ledger.on_event(Phase("load model", "gpu-1"))
    assert said[-1] == "engine gpu-1: load model"


def test_time_counts_for_a_phase_that_fails_too() -> None:
    ledger, _ = make_ledger()
    with pytest.raises(OSError), ledger.timed("plan"):
        raise OSError(28, "No space left", str(Path("store")))
    assert "plan" in ledger.seconds
