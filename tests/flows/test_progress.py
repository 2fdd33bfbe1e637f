"""What people see: lines where there is no terminal, bars on one."""

import io
import time

import pytest
from rich.console import Console

from flows.progress import (
    BarProgress,
    Counting,
    LineProgress,
    current_progress,
    format_bytes,
    showing,
)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def lines(said: list[str]) -> LineProgress:
    return LineProgress(said.append)


def test_a_phase_is_a_line_at_its_start_and_one_at_its_end(lines: LineProgress, said: list[str]) -> None:
    lines.start_phase("extract", 2000)
    time.sleep(0.2)
    lines.advance(500, 1_000_000)
    lines.advance(1500, 2_400_000)
    assert said[0] == "extract: 2,000 tokens"
    [end] = said[1:]
    assert end.startswith("extract: 2,000 of 2,000 tokens, ")
    assert " tokens/s" in end
    assert end.endswith("3.4 MB stored")


def test_a_phase_that_does_not_reach_its_total_is_closed_by_the_next(lines: LineProgress, said: list[str]) -> None:
    lines.start_phase("extract", 2000)
    lines.advance(500)
    lines.start_phase("validate", 3, "samples")
    assert said[1].startswith("extract: 500 of 2,000 tokens")
    assert said[2] == "validate: 3 samples"


def test_a_long_phase_says_how_far_it_is_and_how_long_it_takes(
    lines: LineProgress, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines.start_phase("extract", 10_000)
    started = time.monotonic()
    for seconds in (1, 11, 12, 22):
        monkeypatch.setattr(time, "monotonic", lambda now=started + seconds: now)
        lines.advance(1000)
    assert len(said) == 3
    assert "2,000 of 10,000 tokens, 182 tokens/s, 44 s left" in said[1]
    assert "4,000 of 10,000 tokens, 182 tokens/s, 33 s left" in said[2]


def test_loading_a_model_is_no_part_of_the_rate(
    lines: LineProgress, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines.start_phase("extract", 1000)
    started = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: started + 100)
    lines.note("engine: ready")
    monkeypatch.setattr(time, "monotonic", lambda: started + 110)
    lines.advance(1000)
    assert "100 tokens/s" in said[-1]


def test_a_phase_with_nothing_to_do_says_nothing(lines: LineProgress, said: list[str]) -> None:
    counting = Counting(lines, "compact", "samples")
    assert said == []
    counting(1, 3)
    counting(3, 3)
    assert said[0] == "compact: 3 samples"
    assert said[-1].startswith("compact: 3 of 3 samples")


def test_bars_show_phase_amount_rate_bytes_and_time_left() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with BarProgress(console) as bars:
        bars.advance(5)  # before any phase: nothing to move
        bars.note("12 rows")
        bars.start_phase("tokenize", 100, "bytes")
        bars.start_phase("extract", 2000)
        for _ in range(3):
            bars.advance(500, 800_000)
            time.sleep(0.05)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("12 rows", "tokenize", "100/100 bytes", "extract", "1,500/2,000 tokens", "/s", "2.4 MB", "0:0"):
        assert part in text


def test_a_phase_shows_where_it_was_asked_for_and_nowhere_else(lines: LineProgress, said: list[str]) -> None:
    elsewhere: list[str] = []
    with showing(lines):
        current_progress(elsewhere.append).note("here")
    current_progress(elsewhere.append).note("there")
    assert (said, elsewhere) == (["here"], ["there"])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_550_000, "1.6 MB"),
        (999_000_000, "999.0 MB"),
        (2.5e9, "2.5 GB"),
        (31e12, "31.0 TB"),
        (4.2e15, "4,200.0 TB"),
    ],
)
def test_bytes_are_written_with_the_unit_that_fits(count: float, text: str) -> None:
    assert format_bytes(count) == text
