import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.batches import make_batches, make_units

lengths_strategy = st.lists(st.integers(1, 5000), max_size=200)
limits = st.integers(1, 10_000)


@settings(deadline=None)
@given(lengths_strategy, limits, st.integers(1, 40))
def test_every_sequence_is_in_exactly_one_batch(lengths, max_tokens, max_sequences):
    batches = make_batches(lengths, max_tokens=max_tokens, max_sequences=max_sequences)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(batches)


@settings(deadline=None)
@given(lengths_strategy, limits, st.integers(1, 40))
def test_a_batch_keeps_its_limits_unless_it_is_one_long_sequence(lengths, max_tokens, max_sequences):
    for batch in make_batches(lengths, max_tokens=max_tokens, max_sequences=max_sequences):
        assert len(batch) <= max_sequences
        assert len(batch) == 1 or sum(lengths[index] for index in batch) <= max_tokens


@settings(deadline=None)
@given(lengths_strategy, limits, st.integers(1, 40))
def test_batches_run_from_the_longest_to_the_shortest(lengths, max_tokens, max_sequences):
    batches = make_batches(lengths, max_tokens=max_tokens, max_sequences=max_sequences)
    in_order = [lengths[index] for batch in batches for index in batch]
    assert in_order == sorted(lengths, reverse=True)


def test_batches_do_not_depend_on_chance():
    assert make_batches([5, 9, 5, 5], max_tokens=10, max_sequences=8) == [[1], [0, 2], [3]]


def test_no_more_batches_than_needed():
    assert len(make_batches([4] * 100, max_tokens=16, max_sequences=100)) == 25
    assert len(make_batches([4] * 100, max_tokens=1600, max_sequences=10)) == 10


@settings(deadline=None)
@given(lengths_strategy, limits, st.integers(1, 9))
def test_units_cover_every_sequence_once_in_order(lengths, unit_tokens, num_groups):
    units = make_units(lengths, unit_tokens=unit_tokens, num_groups=num_groups)
    assert [index for unit in units for index in unit] == list(range(len(lengths)))
    assert all(units)


@settings(deadline=None)
@given(lengths_strategy, limits, st.integers(1, 9))
def test_units_are_balanced_and_shared_evenly(lengths, unit_tokens, num_groups):
    units = make_units(lengths, unit_tokens=unit_tokens, num_groups=num_groups)
    if lengths:
        mean = sum(lengths) / len(units)
        assert max(sum(lengths[index] for index in unit) for unit in units) <= mean + max(lengths)
        assert mean <= max(unit_tokens, sum(lengths) / len(lengths))
        assert len(units) % num_groups == 0 or len(units) == len(lengths)


def test_units_are_not_smaller_than_asked_when_one_engine_does_all():
    units = make_units([100] * 1000, unit_tokens=10_000, num_groups=1)
    assert [len(unit) for unit in units] == [100] * 10


def test_no_work_makes_no_units_and_no_batches():
    assert make_units([], unit_tokens=10, num_groups=4) == []
    assert make_batches([], max_tokens=10, max_sequences=4) == []


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused_by_name(limit):
    with pytest.raises(ValueError, match=f"max_tokens is {limit}"):
        make_batches([1], max_tokens=limit, max_sequences=1)
    with pytest.raises(ValueError, match=f"num_groups is {limit}"):
        make_units([1], unit_tokens=1, num_groups=limit)
