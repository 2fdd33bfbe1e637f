"""Regions of a ring never overlap, whatever the order in which they are given back, and all memory comes back."""

import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.ring import Region, Ring

CAPACITY = 4096


@given(st.lists(st.tuples(st.integers(0, CAPACITY), st.integers(0, 1 << 30)), max_size=60))
def test_what_is_taken_is_inside_and_overlaps_nothing(steps: Sequence[tuple[int, int]]) -> None:
    ring = Ring(CAPACITY)
    taken: list[Region] = []
    for num_bytes, choice in steps:
        while not ring._has_room(num_bytes):
            ring.give_back(taken.pop(choice % len(taken)))
        region = ring.take(num_bytes)
        assert region.start + num_bytes <= CAPACITY
        for other in taken:
            assert region.start + num_bytes <= other.start or other.start + other.num_bytes <= region.start
        taken.append(region)
    for region in taken:
        ring.give_back(region)
    assert ring.used_bytes == 0
    ring.take(CAPACITY)


def test_who_finds_no_room_waits_for_it_and_is_counted() -> None:
    ring = Ring(100)
    first = ring.take(60)
    threading.Timer(0.05, ring.give_back, [first]).start()
    ring.take(60)
    assert ring.waited_seconds > 0


def test_more_than_there_is_and_what_comes_too_late_are_refused() -> None:
    ring = Ring(100)
    with pytest.raises(ValueError, match="101 bytes are more than the 100 of the ring"):
        ring.take(101)
    ring.take(100)
    threading.Timer(0.05, ring.close).start()
    with pytest.raises(RuntimeError, match="closed"):
        ring.take(1)
