"""Linear attention on a CPU: each sequence of a batch by itself, in float32, as a token after the other gives it."""

import pytest
import torch
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from tasks.engine.canary import relative_error
from tasks.engine.cpu_linear_attention import apply_delta_rule, convolve, make_gates

# Less and more than the 64 tokens that are multiplied at a time.
LENGTHS = (1, 63, 64, 65, 200)
KEY_HEADS, VALUE_HEADS, WIDTH = 2, 4, 16
STARTS = torch.tensor([0, *LENGTHS]).cumsum(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def tokens() -> dict[str, torch.Tensor]:
    total = sum(LENGTHS)
    decay, strength = make_gates(
        draw(VALUE_HEADS), draw(total, VALUE_HEADS), draw(total + 1, VALUE_HEADS)[1:], draw(VALUE_HEADS)
    )
    query, key = draw(1, total, KEY_HEADS, WIDTH), draw(1, total + 1, KEY_HEADS, WIDTH)[:, 1:]
    return {"q": query, "k": key, "v": draw(1, total, VALUE_HEADS, WIDTH), "g": decay, "beta": strength}


def cut(tokens: dict[str, torch.Tensor], start: int, end: int) -> dict[str, torch.Tensor]:
    return {name: part[:, start:end] for name, part in tokens.items()}


def test_sequences_of_a_batch_do_not_see_each_other(tokens: dict[str, torch.Tensor]) -> None:
    packed, *_ = apply_delta_rule(**tokens, cu_seqlens=STARTS)
    assert packed.shape == (1, sum(LENGTHS), VALUE_HEADS, WIDTH)
    for start, end in zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True):
        alone, *_ = apply_delta_rule(**cut(tokens, start, end), cu_seqlens=torch.tensor([0, end - start]))
        assert torch.equal(packed[:, start:end], alone)


def test_it_is_what_a_token_after_the_other_gives(tokens: dict[str, torch.Tensor]) -> None:
    """Heads of keys serve several heads of values, neighbours."""
    start, end = STARTS[-2:].tolist()
    one = cut(tokens, start, end)
    ours, *_ = apply_delta_rule(**one, cu_seqlens=torch.tensor([0, end - start]))
    query, key = (one[name].repeat_interleave(VALUE_HEADS // KEY_HEADS, dim=2) for name in ("q", "k"))
    theirs, _ = torch_recurrent_gated_delta_rule(
        query, key, one["v"], one["g"], one["beta"], None, output_final_state=False, use_qk_l2norm_in_kernel=True
    )
    assert relative_error(ours, theirs) <= 1e-5


def test_a_lower_precision_rounds_what_comes_out_and_nothing_between(tokens: dict[str, torch.Tensor]) -> None:
    rounded = {name: part.bfloat16() for name, part in tokens.items() if name in "qkv"}
    rest = {"g": tokens["g"], "beta": tokens["beta"], "cu_seqlens": STARTS}
    ours, *_ = apply_delta_rule(**rounded, **rest)
    exact, *_ = apply_delta_rule(**{name: part.float() for name, part in rounded.items()}, **rest)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, exact.bfloat16())


def test_a_convolution_reaches_back_to_the_start_of_its_sequence_and_no_further() -> None:
    channels, width = 6, 4
    x, weight, bias = draw(channels, sum(LENGTHS)), draw(channels, width), draw(channels)
    ours = convolve(x, weight, bias, query_start_loc=STARTS)
    expected = torch.zeros_like(x)
    for start, end in zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True):
        for token in range(start, end):
            seen = x[:, max(start, token + 1 - width) : token + 1]
            expected[:, token] = (seen * weight[:, width - seen.shape[1] :]).sum(1) + bias
    assert torch.allclose(ours, torch.nn.functional.silu(expected), atol=1e-5)
