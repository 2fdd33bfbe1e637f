"""The benchmark of what Prefect costs, small: both ways do the same work, and time between steps is found."""

import time
from pathlib import Path
from typing import Any

import overhead
import pytest
from record import read_results


def test_both_ways_do_the_same_work(tmp_path: Path) -> None:
    small = ["--units", "2", "--unit-tokens", "1000", "--rounds", "1"]
    overhead.main([str(tmp_path / "bench"), *small, "--results", str(tmp_path)])
    [document] = read_results("overhead", tmp_path)
    figures = document["figures"]
    [found] = figures["rounds"]
    assert found["flow"]["samples"] == found["plain"]["samples"] > 1
    assert found["flow"]["units"] >= 2
    assert 0 < figures["share"] < 1
    assert sum(gap["seconds"] for gap in found["flow"]["longest_gaps"]) <= found["flow"]["seconds"]
    assert found["flow"]["server_cpu_seconds"] > 0
    assert not (tmp_path / "bench").exists()


def test_the_gaps_are_where_nothing_ran() -> None:
    clock = overhead.Clock()
    clock.spans = [(101.0, 102.0), (110.0, 114.0), (111.0, 112.0), (113.0, 115.0), (101.5, 101.7)]
    assert clock.gaps(100.0, 120.0) == [(0.0, 1.0), (2.0, 8.0), (15.0, 5.0)]
    assert clock.gaps(101.0, 115.0) == [(1.0, 8.0)]


def test_what_fails_was_running_too() -> None:
    clock = overhead.Clock()

    def fail() -> Any:
        raise ValueError

    with pytest.raises(ValueError):
        clock.watch(fail)()
    [(began, ended)] = clock.spans
    assert began <= ended <= time.monotonic()
