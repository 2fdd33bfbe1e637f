"""transformers with what enters its linear layers rounded to FP8: what a right FP8 forward errs by."""

from collections.abc import Callable
from typing import Any

import torch
from quantized_weights import FP8_MAX, to_fp8

Round = Callable[[torch.Tensor], torch.Tensor]


def round_to_fp8(values: torch.Tensor, group_size: int | None = None) -> torch.Tensor:
    """Round to FP8 and back, with a scale a token, or a scale a group of a token."""
    groups = values.float().unflatten(-1, (-1, group_size or values.shape[-1]))
    scale = groups.abs().amax(-1, keepdim=True).clamp_min(1e-10) / FP8_MAX
    return (to_fp8(groups, scale).float() * scale).flatten(-2).to(values.dtype)


def round_inputs(model: torch.nn.Module, round_input: Round) -> None:
    """Round what enters the linear layers of the blocks and of experts, not routers and the LM head."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name.endswith(("_proj", "_with_mqa")):
            module.register_forward_pre_hook(lambda _module, args: (round_input(args[0]), *args[1:]))
        if hasattr(module, "gate_up_proj") and isinstance(module.gate_up_proj, torch.nn.Parameter):
            module.forward = _experts(module, round_input)


def _experts(experts: Any, round_input: Round) -> Callable[..., torch.Tensor]:
    """The experts of transformers, which keep the weights of all in one tensor, as their definition says."""

    def forward(states: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(states)
        for expert in chosen.unique().tolist():
            tokens, places = (chosen == expert).nonzero(as_tuple=True)
            gate, up = (round_input(states[tokens]) @ experts.gate_up_proj[expert].T).chunk(2, -1)
            inner = round_input(experts.act_fn(gate) * up)
            result = inner @ experts.down_proj[expert].T * shares[tokens, places, None]
            total.index_add_(0, tokens, result.to(total.dtype))
        return total

    return forward
