"""Linear attention on a CPU: three kernels of `sgl_kernel` that SGLang has no native version of, in plain torch.

The gated delta rule (arXiv 2412.06464) is that of transformers, 64 tokens at a time. A batch never has a prefix, so
that every sequence starts from an empty state, and none is kept.
"""

from typing import Any

import torch
from torch.nn import functional


def convolve(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *, query_start_loc: torch.Tensor, **_: Any
) -> torch.Tensor:
    """Convolve each channel with the tokens before, each sequence by itself, then apply SiLU.

    Args:
        x: [channels, num_tokens], sequences one after the other.
        weight: [channels, width].
        bias: [channels] or None.
        query_start_loc: where sequences start, and the end: int[num_sequences + 1].
    """
    channels, width = weight.shape
    convolved = [
        functional.conv1d(part[None], weight[:, None], bias, padding=width - 1, groups=channels)[..., : part.shape[1]]
        for part in torch.split(x, query_start_loc.diff().tolist(), dim=1)
    ]
    return torch.cat([functional.silu(part)[0] for part in convolved], dim=1)


def make_gates(
    a_log: torch.Tensor, a: torch.Tensor, b: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the decay and the strength of the update: float32[1, num_tokens, num_heads] each."""
    decay = -a_log.float().exp() * functional.softplus(a.float() + dt_bias.float())
    return decay[None], b.float().sigmoid()[None]


def apply_delta_rule(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    cu_seqlens: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None, None]:
    """Run the gated delta rule over each sequence, in float32.

    Args:
        q: [1, num_tokens, num_key_heads, key_dim].
        k: as `q`.
        v: [1, num_tokens, num_value_heads, value_dim].
        g: logarithm of the decay, and
        beta: strength of the update, as `make_gates` returns them.
        cu_seqlens: where sequences start, and the end: int[num_sequences + 1].

    Returns:
        [1, num_tokens, num_value_heads, value_dim], and nothing in place of the states to keep.
    """
    # Heavy, and of no use to other models.
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule  # noqa: PLC0415

    groups = v.shape[2] // k.shape[2]
    queries, keys = (x.float().repeat_interleave(groups, dim=2) for x in (q, k))
    cuts = cu_seqlens.diff().tolist()
    sequences = zip(*(torch.split(part, cuts, dim=1) for part in (queries, keys, v.float(), g, beta)), strict=True)
    outputs = [torch_chunk_gated_delta_rule(*sequence, use_qk_l2norm_in_kernel=True)[0] for sequence in sequences]
    return torch.cat(outputs, dim=1).to(v.dtype), None, None
