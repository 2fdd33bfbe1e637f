"""How long an engine may be silent, by what it has said; its clock is ours."""

import pytest

from tasks.messages import BatchStarted, Phase, UnitComputed
from tasks.patience import FIRST_BATCH_SECONDS, LEAST_SECONDS, LOAD_SECONDS, SLOWDOWN, Patience

DONE = UnitComputed(1, "")


@pytest.fixture
def clock() -> Patience:
    """Return one that has heard of a first batch that took 70 s, as it does on a GPU, and of a second that took 2 s."""
    clock = Patience()
    for now, message in ((0, Phase("load model")), (100, BatchStarted(1000)), (170, BatchStarted(1000)), (172, DONE)):
        clock.hear(message, now)
    return clock


def test_loading_and_the_first_batch_have_long() -> None:
    clock = Patience()
    assert clock.seconds == LOAD_SECONDS
    clock.hear(BatchStarted(100), 0)
    assert clock.seconds == FIRST_BATCH_SECONDS


def test_the_second_has_long_too_while_nothing_else_is_known() -> None:
    clock = Patience()
    clock.hear(BatchStarted(1000), 0)
    clock.hear(BatchStarted(1000), 70)
    assert clock.seconds == SLOWDOWN * 70


def test_what_the_first_batch_compiled_counts_no_more_once_another_is_known(clock: Patience) -> None:
    clock.hear(BatchStarted(1000), 180)
    assert clock.seconds == SLOWDOWN * 2


def test_a_larger_batch_has_longer_and_a_smaller_one_no_less(clock: Patience) -> None:
    clock.hear(BatchStarted(3000), 180)
    assert clock.seconds == SLOWDOWN * 6
    clock.hear(BatchStarted(1), 181)
    assert clock.seconds == SLOWDOWN * 2


def test_a_slow_small_batch_does_not_make_it_patient_with_all_large_ones(clock: Patience) -> None:
    clock.hear(BatchStarted(1), 180)
    clock.hear(BatchStarted(1000), 181)
    assert clock.seconds == SLOWDOWN * 2


def test_idle_time_between_units_does_not_count(clock: Patience) -> None:
    clock.hear(BatchStarted(1000), 10_000)
    assert clock.seconds == SLOWDOWN * 2


def test_it_is_never_less_than_its_least() -> None:
    clock = Patience()
    for now in range(3):
        clock.hear(BatchStarted(1000), now / 1000)
    assert clock.seconds == LEAST_SECONDS
