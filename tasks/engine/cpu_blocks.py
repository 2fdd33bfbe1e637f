"""Parts of SGLang's blocks that it has only as compiled kernels, or computes otherwise on a GPU, in plain torch.

All else of a model runs on a CPU by SGLang's own native operations. A row of `architectures` names the functions that
its blocks need; each takes a block of the loaded model and replaces one part of it by the arithmetic of the GPU, which
the tests compare with transformers layer by layer. Nothing of SGLang is imported.
"""

import types
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def replace_kernels(blocks: Sequence[Any], names: Sequence[str]) -> None:
    """Apply the functions of this module called `names` to every block."""
    for block in blocks:
        for name in names:
            globals()[name](block)


def gate_shared_expert(block: Any) -> None:
    """Qwen-MoE: the sigmoid gate of the shared expert."""
    moe = block.mlp
    moe.shared_expert = _GatedExpert(moe.shared_expert, moe.shared_expert_gate)
    moe.shared_expert_gate = None


def norm_and_gate_linear_attention(block: Any) -> None:
    """Qwen3-Next: the gated norm behind linear attention, which one block in a few does not have."""
    if hasattr(block, "linear_attn"):
        block.linear_attn.norm = _GatedNorm(block.linear_attn.norm)


def norm_queries_and_keys(block: Any) -> None:
    """MiniMax-M2: the norm over all heads of queries and of keys; SGLang's own for CPUs with AMX."""
    norm = block.self_attn.qk_norm_impl
    norm._forward_impl = norm._forward_cpu  # noqa: SLF001


def attend_with_sinks(block: Any) -> None:
    """gpt-oss: attention with a sink a head. Its layers come in the checkpoint's dtype, whatever is asked for."""
    block.to(block.input_layernorm.weight.dtype)
    block.self_attn.attn = _SinkAttention(block.self_attn.attn)


def route_in_float32(block: Any) -> None:
    """DeepSeek: on a GPU the router's scores come out of bf16 weights in float32; elsewhere SGLang rounds them."""
    if hasattr(block.mlp, "gate"):
        block.mlp.gate = _Float32Router(block.mlp.gate)


def rotate_and_norm_in_place(block: Any) -> None:
    """Llama-4: on other devices than CUDA SGLang drops what is rotated, and norms in bf16."""
    attention = block.self_attn
    if attention.rotary_emb is not None:
        attention.rotary_emb = _RotateAndNorm(attention.rotary_emb, attention.qk_norm, attention.head_dim)
        attention.qk_norm = None


def weigh_before_experts(block: Any) -> None:
    """Llama-4: weights of the router multiply what enters an expert; SGLang's native experts weigh only what leaves."""
    moe = block.feed_forward
    if hasattr(moe, "experts"):
        moe.experts.moe_runner_config.apply_router_weight_on_input = False
        moe._forward_core_normal = types.MethodType(_route_weighed, moe)  # noqa: SLF001


def _route_weighed(moe: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    router_logits, _ = moe.router(hidden_states)
    routing = moe.topk(hidden_states, router_logits)  # one expert a token: topk_weights is [num_tokens, 1]
    weighed = hidden_states * routing.topk_weights
    ones = routing._replace(topk_weights=torch.ones_like(routing.topk_weights))
    return moe.shared_expert(hidden_states), moe.experts(weighed, ones)


class _GatedExpert(nn.Module):
    def __init__(self, expert: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.expert, self.gate = expert, gate

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = torch.sigmoid(self.gate(hidden_states)) * self.expert(hidden_states)
        return gated


class _Float32Router(nn.Module):
    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.weight, self.e_score_correction_bias = gate.weight, gate.e_score_correction_bias

    def forward(self, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Return the router's logits: float32[num_tokens, num_experts]."""
        return functional.linear(hidden_states.float(), self.weight.float())


class _GatedNorm(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.eps)
        gated: torch.Tensor = self.weight * normed.to(x.dtype) * functional.silu(gate.float())
        return gated.to(x.dtype)


class _RotateAndNorm(nn.Module):
    def __init__(self, rotary: nn.Module, norm: nn.Module | None, head_dim: int) -> None:
        super().__init__()
        self.rotary, self.norm, self.head_dim = rotary, norm or nn.Identity(), head_dim

    def forward(
        self, positions: torch.Tensor, query: torch.Tensor, key: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for target, rotated in zip((query, key), self.rotary(positions, query, key), strict=True):
            target.copy_(self.norm(rotated.reshape(-1, self.head_dim)).view_as(target))
        return query, key


class _SinkAttention(nn.Module):
    """Causal attention over each sequence; a sink takes its share of the softmax and adds nothing."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        self.num_heads, self.num_key_heads = attention.tp_q_head_num, attention.tp_k_head_num
        self.head_dim, self.scaling = attention.head_dim, attention.scaling
        self.window = attention.sliding_window_size  # tokens before the last that are seen; -1 is all

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        forward_batch: Any,
        *,
        sinks: torch.Tensor,
        save_kv_cache: bool = True,  # noqa: ARG002 - nothing reads a cache: each batch holds whole sequences
    ) -> torch.Tensor:
        cuts = forward_batch.extend_seq_lens.tolist()
        queries = torch.split(query.view(-1, self.num_heads, self.head_dim), cuts)
        keys, values = (torch.split(x.view(-1, self.num_key_heads, self.head_dim), cuts) for x in (key, value))
        return torch.cat([self._attend(*sequence, sinks) for sequence in zip(queries, keys, values, strict=True)])

    def _attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
        length, groups = len(query), self.num_heads // self.num_key_heads
        key, value = (x.repeat_interleave(groups, dim=1).transpose(0, 1) for x in (key, value))
        scores = query.transpose(0, 1) @ key.transpose(1, 2) * self.scaling
        scores = scores.masked_fill(self._hidden(length), -torch.inf)
        sink = sinks[:, None, None].to(scores.dtype).expand(-1, length, 1)
        shares = torch.cat([scores, sink], dim=-1).softmax(-1)[..., :length]
        return (shares @ value).transpose(0, 1).reshape(length, -1)

    def _hidden(self, length: int) -> torch.Tensor:
        distance = torch.arange(length)[:, None] - torch.arange(length)
        outside = distance > self.window if self.window >= 0 else torch.zeros_like(distance, dtype=torch.bool)
        return outside | (distance < 0)
