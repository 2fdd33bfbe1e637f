"""What the memory of a run came to, by process and minute."""

import memory
import psutil
import pytest


def test_growth_is_counted_from_the_second_minute_on() -> None:
    looks = [{"run": 100, "engine": size} for size in [0] * 30 + [400] * 30 + [500] * 30]
    figures = memory.describe(looks)
    assert [minute["total"] for minute in figures["minutes"]] == [100, 500, 600]
    assert figures["growth_bytes"] == {"run": 0, "engine": 100, "total": 100}
    assert figures["growth_share"] == pytest.approx(0.2)
    assert figures["peak_bytes"] == 600
    assert figures["watched_seconds"] == 180


def test_a_process_is_measured_by_what_it_is() -> None:
    here = psutil.Process()
    found = memory.measure_memory(here)
    assert 10_000_000 < found["run"] <= here.memory_info().rss * 1.1
