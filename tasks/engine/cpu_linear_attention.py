"""Linear attention on a CPU: three kernels of `sgl_kernel` that SGLang has no native version of, in plain torch.

What they compute is written in the papers on gated delta networks (arXiv 2412.06464) and read in SGLang's Triton
kernels; a token at a time, since they are there to be right. A batch never has a prefix, so that every sequence starts
from an empty state, and none is kept.
"""

from typing import Any

import torch
from torch.nn import functional

# Added to a sum of squares before its root, as in SGLang's `l2norm`.
NORM_EPSILON = 1e-6


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
    padded = (functional.pad(part, (width - 1, 0)) for part in torch.split(x, query_start_loc.diff().tolist(), dim=1))
    parts = [functional.conv1d(part, weight[:, None], bias, groups=channels) for part in padded]
    return functional.silu(torch.cat(parts, dim=1))


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
    """Run the gated delta rule over each sequence.

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
    groups = v.shape[2] // k.shape[2]
    queries = _unit_length(q[0].float()).repeat_interleave(groups, dim=1) * q.shape[-1] ** -0.5
    keys = _unit_length(k[0].float()).repeat_interleave(groups, dim=1)
    cuts = cu_seqlens.diff().tolist()
    tokens = (queries, keys, v[0].float(), g[0].exp(), beta[0])
    sequences = zip(*(torch.split(part, cuts) for part in tokens), strict=True)
    return torch.cat([_run_sequence(*sequence) for sequence in sequences])[None].to(v.dtype), None, None


def _run_sequence(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, decays: torch.Tensor, strengths: torch.Tensor
) -> torch.Tensor:
    state = values.new_zeros(keys.shape[1], keys.shape[2], values.shape[2])  # [num_heads, key_dim, value_dim]
    outputs = torch.empty_like(values)
    for token, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
        state = state * decays[token][:, None, None]
        known = torch.einsum("hk,hkv->hv", key, state)
        state += key[:, :, None] * ((value - known) * strengths[token][:, None])[:, None]
        outputs[token] = torch.einsum("hk,hkv->hv", query, state)
    return outputs


def _unit_length(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + NORM_EPSILON)
