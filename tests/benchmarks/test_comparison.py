import pytest
import torch
from comparison import compare, measure_errors, summarize

# Two sequences of two tokens each, one layer, two numbers a state.
LENGTHS = (2, 2)
TRUTH = torch.tensor([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0], [0.0, 10.0]])[:, None]


def moved(*steps: float) -> torch.Tensor:
    """The truth, each token moved along its own direction by this much."""
    return TRUTH + torch.tensor(steps)[:, None, None] * TRUTH / TRUTH.norm(dim=-1, keepdim=True)


def test_the_relative_error_is_over_all_tokens_at_once():
    errors = measure_errors(moved(3, 0, 4, 0), TRUTH)

    assert summarize(errors, errors)["relative_error"] == [pytest.approx((25 / 130) ** 0.5, rel=1e-3)]


def test_the_median_token_does_not_see_one_token_that_went_another_way():
    theirs = measure_errors(moved(0.05, 0.02, 0.01, 0.1), TRUTH)
    ours = measure_errors(moved(0.05, 0.02, 0.01, 50), TRUTH)

    compared = compare(ours, theirs, LENGTHS)

    assert compared["ratio"][0] > 100
    assert compared["median_ratio"] == [1.0]
    assert summarize(ours, theirs)["apart"] == [0.25]
    assert summarize(theirs, theirs)["apart"] == [0.0]


def test_the_interval_is_wide_where_one_sequence_decides():
    theirs = measure_errors(moved(0.1, 0.1, 0.1, 0.1), TRUTH)
    ours = measure_errors(moved(0.1, 0.1, 0.1, 5), TRUTH)

    compared = compare(ours, theirs, LENGTHS)

    assert compared["ratio_low"] == [1.0]
    assert compared["ratio_low"][0] < compared["ratio"][0] < compared["ratio_high"][0]


def test_a_longer_state_has_the_same_direction():
    errors = measure_errors(moved(1, 1, 1, 1), TRUTH)

    assert summarize(errors, errors)["cosine_distance"] == [pytest.approx(0, abs=1e-15)]


def test_the_cosine_of_states_that_are_nearly_the_same_is_not_mere_rounding():
    turned = TRUTH + 1e-6 * TRUTH.flip(-1) * torch.tensor([1, -1])
    errors = measure_errors(turned.double(), TRUTH)

    assert summarize(errors, errors)["cosine_distance"][0] == pytest.approx(5e-13, rel=1e-2)


def test_what_transformers_has_exactly_ours_must_have_too():
    exact, wrong = measure_errors(TRUTH, TRUTH), measure_errors(moved(0, 0, 0, 1), TRUTH)

    assert compare(exact, exact, LENGTHS)["ratio"] == [0.0]
    assert compare(wrong, exact, LENGTHS)["ratio"][0] > 1e9
