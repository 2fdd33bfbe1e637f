import pytest
import torch

from tasks.faults import Fault, find_faults

LENGTHS = [3, 1, 5]
LAYERS = (4, "final")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(params=DTYPES, ids=str)
def states(request: pytest.FixtureRequest) -> torch.Tensor:
    """Three samples of two layers, nowhere zero."""
    return torch.rand(sum(LENGTHS), 2, 8, generator=torch.Generator().manual_seed(0)).add(0.5).to(request.param)


def test_sound_states_have_no_fault(states: torch.Tensor) -> None:
    assert find_faults(states, LENGTHS, LAYERS) == [None, None, None]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_value_that_is_not_finite_sets_its_sample_aside_and_no_other(states: torch.Tensor, value: float) -> None:
    states[3, 1, 7] = value
    assert find_faults(states, LENGTHS, LAYERS) == [None, Fault("non_finite", "NaN or Inf in 1 of 1 rows"), None]


def test_what_overflows_in_the_storage_dtype_is_not_finite() -> None:
    states = torch.full((2, 1, 4), 70_000.0)
    assert find_faults(states, [2], (8,)) == [None]
    assert find_faults(states.to(torch.bfloat16), [2], (8,)) == [None]
    assert find_faults(states.to(torch.float16), [2], (8,)) == [Fault("non_finite", "NaN or Inf in 2 of 2 rows")]


def test_a_layer_that_is_zero_at_a_token_sets_its_sample_aside(states: torch.Tensor) -> None:
    states[[4, 8], 0] = 0
    states[8, 1] = -0.0
    assert find_faults(states, LENGTHS, LAYERS) == [None, None, Fault("all_zero", "a layer is all zero in 2 of 5 rows")]


def test_zeros_beside_a_value_are_sound(states: torch.Tensor) -> None:
    states[:] = 0
    states[:, :, 3] = 1e-6
    assert find_faults(states, LENGTHS, LAYERS) == [None, None, None]


def test_every_faulty_sample_gets_its_own_first_fault(states: torch.Tensor) -> None:
    states[0] = 0
    states[0, 0, 0] = float("nan")
    states[3] = 0
    states[5, 0] = 0
    reasons = [fault and fault.reason for fault in find_faults(states, LENGTHS, LAYERS)]
    assert reasons == ["non_finite", "all_zero", "all_zero"]


def test_an_embedding_may_be_zero_but_must_be_finite(states: torch.Tensor) -> None:
    """Layer 0 of a padding token is zero in many a model."""
    states[:, 0] = 0
    assert find_faults(states, LENGTHS, (0, 4)) == [None, None, None]
    assert find_faults(states[:, :1], LENGTHS, (0,)) == [None, None, None]
    states[3, 0, 0] = float("nan")
    assert find_faults(states, LENGTHS, (0, 4)) == [None, Fault("non_finite", "NaN or Inf in 1 of 1 rows"), None]
