"""Random checkpoints of a few billion parameters, written in seconds, a tensor at a time, for tests on a GPU.

They are quantized as they are drawn: the numbers of a format are random themselves, about as large as trained ones.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from published_quantizations import FP8_BLOCK, PACKED
from safetensors.torch import save_file
from tiny_configs import DEEPSEEK_V3, KIMI_K2, TINY_MODELS, YARN

Shape = tuple[int, ...]

STD = 0.02
SHARD_BYTES = 4 << 30
LAST = "lm_head.weight"

LLAMA_8B: dict[str, Any] = {
    **TINY_MODELS["llama"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}
# Kimi-K2 and DeepSeek-V3 have about 30 times as many numbers in experts.
_MLA_4B: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 16384,
    "q_lora_rank": 768,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_experts_per_tok": 8,
    "rope_scaling": YARN | {"original_max_position_embeddings": 4096},
    "rope_parameters": YARN | {"original_max_position_embeddings": 4096, "rope_theta": 10000.0},
}
LARGE_MODELS: dict[str, dict[str, Any]] = {
    "llama-8b": LLAMA_8B,  # 8.0 B parameters, 16 GB
    "deepseek-v3-fp8-block": DEEPSEEK_V3
    | _MLA_4B
    | {"n_routed_experts": 64, "n_group": 8, "topk_group": 4, "quantization_config": FP8_BLOCK},  # 4.9 B, 5 GB
    "kimi-k2-packed-experts": KIMI_K2
    | _MLA_4B
    | {"n_routed_experts": 96, "quantization_config": PACKED},  # 7.1 B, 4.6 GB
}


def make_large_model(config: dict[str, Any], folder: Path, device: str = "cuda", seed: int = 0) -> Path:
    """Write a random checkpoint of an entry of `LARGE_MODELS`, or of any config like one, into an empty folder."""
    generator = torch.Generator(device).manual_seed(seed)
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}, indent=2))
    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    num_bytes = 0
    for name, tensor in _draw_all(config, generator):
        shard[name] = tensor.cpu()
        num_bytes += tensor.numel() * tensor.element_size()
        if num_bytes > SHARD_BYTES or name == LAST:
            places |= _save(shard, folder, len(set(places.values())))
            shard, num_bytes = {}, 0
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def _save(shard: dict[str, torch.Tensor], folder: Path, number: int) -> dict[str, str]:
    name = f"model-{number:05}.safetensors"
    save_file(shard, folder / name, {"format": "pt"})
    return dict.fromkeys(shard, name)


def _draw_all(config: dict[str, Any], generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    method = config.get("quantization_config", {}).get("quant_method")
    for name, shape in _shapes(config):
        is_linear = name.endswith(("_proj", "_proj_with_mqa"))
        if method == "fp8" and is_linear:
            yield from _draw_fp8(name, shape, generator)
        elif method == "compressed-tensors" and ".mlp.experts." in name:
            yield from _draw_packed(name, shape, generator)
        elif name.endswith("e_score_correction_bias"):
            yield name, STD * _normal(shape, generator)
        else:
            values = STD * _normal(shape, generator) + (1.0 if len(shape) == 1 else 0.0)
            yield f"{name}.weight", values.bfloat16()


def _draw_fp8(name: str, shape: Shape, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    spread = 100.0  # standard deviation of the FP8 numbers, which end at 448
    yield f"{name}.weight", (spread * _normal(shape, generator)).clamp(-448, 448).to(torch.float8_e4m3fn)
    blocks = (math.ceil(shape[0] / 128), math.ceil(shape[1] / 128))
    yield f"{name}.weight_scale_inv", STD / spread * (1 + 0.1 * _normal(blocks, generator))


def _draw_packed(name: str, shape: Shape, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    rows, columns = shape
    words = torch.randint(
        -(2**31), 2**31, (rows, columns // 8), generator=generator, device=generator.device, dtype=torch.int32
    )
    yield f"{name}.weight_packed", words
    spread = 4.6  # standard deviation of -8..7
    scales = STD / spread * (1 + 0.1 * _normal((rows, columns // 32), generator))
    yield f"{name}.weight_scale", scales.bfloat16()
    yield f"{name}.weight_shape", torch.tensor(shape)


def _normal(shape: Shape, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device)


def _shapes(config: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    """Name every weight, without `.weight`: [out, in], or [size] for norms and biases."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens", (vocab, hidden)
    for number in range(config["num_hidden_layers"]):
        block = f"model.layers.{number}"
        yield f"{block}.input_layernorm", (hidden,)
        yield f"{block}.post_attention_layernorm", (hidden,)
        attention = _mla_shapes(config) if "kv_lora_rank" in config else _attention_shapes(config)
        yield from ((f"{block}.self_attn.{name}", shape) for name, shape in attention.items())
        is_dense = number < config.get("first_k_dense_replace", number + 1)
        mlp = _mlp_shapes(hidden, config["intermediate_size"]) if is_dense else _experts_shapes(config)
        yield from ((f"{block}.mlp.{name}", shape) for name, shape in mlp.items())
    yield "model.norm", (hidden,)
    yield "lm_head", (vocab, hidden)


def _attention_shapes(config: dict[str, Any]) -> dict[str, Shape]:
    hidden, heads, key_heads = (config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    size = hidden // heads
    return {
        "q_proj": (heads * size, hidden),
        "k_proj": (key_heads * size, hidden),
        "v_proj": (key_heads * size, hidden),
        "o_proj": (hidden, heads * size),
    }


def _mla_shapes(config: dict[str, Any]) -> dict[str, Shape]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope, value = (config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
    q_rank, kv_rank = config["q_lora_rank"], config["kv_lora_rank"]
    return {
        "q_a_proj": (q_rank, hidden),
        "q_a_layernorm": (q_rank,),
        "q_b_proj": (heads * (nope + rope), q_rank),
        "kv_a_proj_with_mqa": (kv_rank + rope, hidden),
        "kv_a_layernorm": (kv_rank,),
        "kv_b_proj": (heads * (nope + value), kv_rank),
        "o_proj": (hidden, heads * value),
    }


def _mlp_shapes(hidden: int, inner: int) -> dict[str, Shape]:
    return {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}


def _experts_shapes(config: dict[str, Any]) -> dict[str, Shape]:
    hidden, inner, count = (config[key] for key in ("hidden_size", "moe_intermediate_size", "n_routed_experts"))
    shapes: dict[str, Shape] = {"gate": (count, hidden), "gate.e_score_correction_bias": (count,)}
    shared = _mlp_shapes(hidden, inner * config["n_shared_experts"])
    shapes |= {f"shared_experts.{name}": shape for name, shape in shared.items()}
    for expert in range(count):
        shapes |= {f"experts.{expert}.{name}": shape for name, shape in _mlp_shapes(hidden, inner).items()}
    return shapes
