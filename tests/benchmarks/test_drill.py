"""The drill, short: everything is killed once, the disk fills up, and in the end nothing is wrong."""

from pathlib import Path

import drill
import pytest
from drill_verdict import wrong_state


def test_nothing_is_lost_done_twice_wrongly_said_or_left_over(tmp_path: Path) -> None:
    figures = drill.run_drill(tmp_path, seconds=30, every=15)
    assert figures["faults"] == []
    assert {f"{kind} killed" for kind in drill.KINDS} < figures["events"].keys()
    assert ("disk filled" in figures["events"]) == figures["disk_filled"]
    assert figures["samples"] >= 2 * drill.SAMPLES
    assert figures["states"]["Completed"] >= 1
    assert figures["states"].keys() <= {"Completed", "Crashed", "Failed"}


@pytest.mark.parametrize(
    ("state", "status", "message", "is_wrong"),
    [
        ("Completed", "completed", "", False),
        ("Completed", "failed", "", True),
        ("Completed", None, "", True),
        ("Failed", "failed", "DataError: one line", False),
        ("Failed", "failed", "two\nlines", True),
        ("Failed", "completed", "", True),
        ("Crashed", None, "", False),
        ("Running", None, "", True),
        ("Pending", None, "", True),
    ],
)
def test_a_state_that_is_not_what_the_report_says_is_a_fault(
    state: str, status: str | None, message: str, is_wrong: bool
) -> None:
    run = {"name": "extract", "state_name": state, "state": {"message": message}}
    assert (wrong_state(run, status) is not None) == is_wrong
