"""Timelines: no token is lost, and there are never too many bins."""

from hypothesis import given
from hypothesis import strategies as st

from tasks.timelines import MOST_BINS, Timeline

MOMENTS = st.floats(1e9, 1e9 + 1e6, allow_nan=False)


@given(st.lists(st.tuples(MOMENTS, st.integers(1, 10_000)), min_size=1, max_size=30))
def test_every_token_is_in_one_bin_about_when_it_came(events: list[tuple[float, int]]) -> None:
    timeline = Timeline()
    for moment, tokens in events:
        timeline.add(moment, tokens)
    assert sum(timeline.tokens) == sum(tokens for _, tokens in events)
    assert len(timeline.tokens) <= MOST_BINS
    end = timeline.began + len(timeline.tokens) * timeline.bin_seconds
    assert all(timeline.began <= moment <= end for moment, _ in events)


@given(st.lists(st.tuples(MOMENTS, st.integers(1, 100)), min_size=2, max_size=20))
def test_two_that_are_joined_have_the_tokens_of_both(events: list[tuple[float, int]]) -> None:
    first, second = Timeline(), Timeline()
    for number, (moment, tokens) in enumerate(events):
        (first if number % 2 else second).add(moment, tokens)
    first.join(second)
    assert sum(first.tokens) == sum(tokens for _, tokens in events)
    assert len(first.tokens) <= MOST_BINS


def test_rates_are_tokens_by_the_length_of_a_bin() -> None:
    timeline = Timeline()
    timeline.add(1000.0, 10)
    timeline.add(1000.0 + MOST_BINS, 30)  # one bin too many: each is two seconds from now on
    assert timeline.bin_seconds == 2.0
    rates = timeline.rates()
    assert rates[0] == (1000.0, 5.0)
    assert rates[-1] == (1000.0 + MOST_BINS, 15.0)
