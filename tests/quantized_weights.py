"""Weights in the formats of published quantized checkpoints, each with the numbers that it stands for.

A function takes a weight as float32[out, in] and gives the tensors that a checkpoint has in its place, by what stands
for `weight` in its name, and those numbers as float32. The formats are those of their definitions: DeepSeek-V3's block
FP8, compressed-tensors' float-quantized and pack-quantized, AutoGPTQ's v1, AutoAWQ's gemm.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - as everyone calls it

Quantized = tuple[dict[str, torch.Tensor], torch.Tensor]

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
NIBBLES = 8  # of 4 bits in an int32
# Which of 8 neighbouring columns stands in which nibble of an AWQ word, lowest first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def to_fp8(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Divide by the scale and round; beyond the largest FP8 number there would be NaN."""
    return (values / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def fp8_block(weight: torch.Tensor, block: int = 128) -> Quantized:
    """One float32 scale a block of 128 x 128; those at the edges are smaller."""
    rows, columns = weight.shape
    padded = F.pad(weight, (0, -columns % block, 0, -rows % block))
    blocks = padded.unflatten(1, (-1, block)).unflatten(0, (-1, block))
    scale = blocks.abs().amax((1, 3)).clamp_min(1e-12) / FP8_MAX
    spread = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)[:rows, :columns]
    values = to_fp8(weight, spread)
    return {"weight": values, "weight_scale_inv": scale}, values.float() * spread


def fp8_channel(weight: torch.Tensor) -> Quantized:
    """One bfloat16 scale a row."""
    scale = (weight.abs().amax(1, keepdim=True).clamp_min(1e-12) / FP8_MAX).bfloat16()
    values = to_fp8(weight, scale.float())
    return {"weight": values, "weight_scale": scale}, values.float() * scale.float()


def fp8_tensor(weight: torch.Tensor, largest: float) -> Quantized:
    """One bfloat16 scale, for numbers up to `largest`."""
    scale = torch.tensor([largest / FP8_MAX]).bfloat16()
    values = to_fp8(weight, scale.float())
    return {"weight": values, "weight_scale": scale}, values.float() * scale.float()


def packed(weight: torch.Tensor, group_size: int = 32) -> Quantized:
    """Symmetric int4, a bfloat16 scale a group of a row; 8 neighbours of a row in a word, from its lowest bits on."""
    groups = weight.unflatten(1, (-1, group_size))
    scale = (groups.abs().amax(2).clamp_min(1e-12) / 7.5).bfloat16()
    spread = scale.float().repeat_interleave(group_size, 1)
    values = (weight / spread).round().clamp(-8, 7)
    tensors = {
        "weight_packed": _pack((values + 8).int(), range(NIBBLES)),
        "weight_scale": scale,
        "weight_shape": torch.tensor(weight.shape),
    }
    return tensors, values * spread


def gptq(weight: torch.Tensor, group_size: int = 128) -> Quantized:
    """Symmetric: 8 is zero, and stored as 7. All is transposed; 8 neighbours of a column in a word."""
    groups = weight.unflatten(1, (-1, group_size))
    scale = (groups.abs().amax(2).clamp_min(1e-6) / 7.5).half()
    spread = scale.float().repeat_interleave(group_size, 1)
    values = (weight / spread).round().clamp(-8, 7)
    zeros = torch.full_like(scale, 7, dtype=torch.int32)
    tensors = {
        "qweight": _pack((values + 8).int(), range(NIBBLES)).T.contiguous(),
        "qzeros": _pack(zeros.T.contiguous(), range(NIBBLES)),
        "scales": scale.T.contiguous(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // group_size,
    }
    return tensors, values * spread


def awq(weight: torch.Tensor, group_size: int = 128) -> Quantized:
    """With a zero a group. All is transposed; 8 neighbours of a row in a word, in AWQ's order."""
    groups = weight.unflatten(1, (-1, group_size))
    low, high = groups.amin(2).clamp_max(0), groups.amax(2).clamp_min(0)
    scale = ((high - low).clamp_min(1e-6) / 15).half()
    zero = (-low / scale.float()).round().clamp(0, 15)
    spread, zeros = (part.float().repeat_interleave(group_size, 1) for part in (scale, zero))
    values = ((weight / spread).round() + zeros).clamp(0, 15)
    tensors = {
        "qweight": _pack(values.int().T.contiguous(), AWQ_ORDER),
        "qzeros": _pack(zero.int().T.contiguous(), AWQ_ORDER),
        "scales": scale.T.contiguous(),
    }
    return tensors, (values - zeros) * spread


def _pack(values: torch.Tensor, order: range | tuple[int, ...]) -> torch.Tensor:
    """Pack int32[rows, columns] of 0..15 along columns: nibble i of a word is its column `order[i]`."""
    words = values.unflatten(1, (-1, NIBBLES))
    packed = torch.zeros_like(words[..., 0])
    for nibble, column in enumerate(order):
        packed |= words[..., column] << (4 * nibble)
    return packed
