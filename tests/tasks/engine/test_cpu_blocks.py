"""What replaces a part of SGLang's blocks on a CPU; the values of whole models are in test_sglang_engine.py."""

from types import SimpleNamespace

import torch

from tasks.engine.cpu_blocks import route_in_float32


def test_a_router_of_bf16_weights_tells_experts_apart_that_bf16_scores_would_not() -> None:
    """Two experts whose scores differ by 2 ** -12: bf16 has 8 bits."""
    weight = torch.tensor([[1.0, 2.0**-12], [1.0, 0.0]]).bfloat16()
    block = SimpleNamespace(mlp=SimpleNamespace(gate=SimpleNamespace(weight=weight, e_score_correction_bias=None)))
    route_in_float32(block)
    hidden_states = torch.ones(3, 2, dtype=torch.bfloat16)
    logits = block.mlp.gate(hidden_states, None)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, torch.tensor([[1 + 2.0**-12, 1.0]]).expand(3, 2))


def test_a_block_without_experts_is_left_as_it_is() -> None:
    block = SimpleNamespace(mlp=SimpleNamespace(gate_up_proj=object()))
    route_in_float32(block)
    assert list(vars(block.mlp)) == ["gate_up_proj"]
