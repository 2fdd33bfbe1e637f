"""Tiny quantized checkpoints, written as published ones are, each beside its twin: the same numbers in float32."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from published_quantizations import AWQ, FP8_BLOCK, FP8_CHANNEL, FP8_TENSOR, GPTQ, PACKED
from quantized_weights import FP8_MAX, Quantized, awq, fp8_block, fp8_channel, fp8_tensor, gptq, packed
from safetensors.torch import load_file, save_file
from tiny_models import ensure_tiny_model

Tensors = dict[str, torch.Tensor]

# No tokenizer is needed, and most of a tiny model is its vocabulary. Four blocks, the first of DeepSeek's dense.
CHANGES: dict[str, Any] = {"vocab_size": 1024, "num_hidden_layers": 4}
SHAPES = {
    # SGLang joins q_a_proj and kv_a_proj at a row that must begin a block of 128.
    "deepseek-v3-fp8-block": {"q_lora_rank": 128, "kv_lora_rank": 128},
    # Experts as narrow as a group of scales are refused (`widest_split` in tasks/engine/quantizations.py).
    "qwen3-moe-gptq": {"moe_intermediate_size": 256},
    "qwen3-moe-awq": {"moe_intermediate_size": 256},
}


@dataclass(frozen=True)
class Scheme:
    """How the linear layers of a checkpoint are quantized, what its config says of it, and the dtype of the rest."""

    quantize: Callable[[torch.Tensor], Quantized]
    config: dict[str, Any]
    dtype: str = "bfloat16"


SCHEMES = {
    "fp8-block": Scheme(fp8_block, FP8_BLOCK),
    "fp8-channel": Scheme(fp8_channel, FP8_CHANNEL),
    "fp8-tensor": Scheme(partial(fp8_tensor, largest=0.0), FP8_TENSOR),  # see _quantize
    "packed": Scheme(packed, PACKED | {"ignore": ["lm_head"]}),
    "packed-experts": Scheme(packed, PACKED),
    "gptq": Scheme(gptq, GPTQ, "float16"),
    "awq": Scheme(awq, AWQ, "float16"),
}
QUANTIZED_MODELS: dict[str, tuple[str, str]] = {
    f"{base}-{scheme}": (base, scheme)
    for scheme, bases in {
        "fp8-block": ("llama", "qwen3", "qwen3-moe", "deepseek-v3", "minimax-m2"),
        "fp8-channel": (
            "llama",
            "qwen3-moe",
            "mistral",
            "phi3",
            "qwen2",
            "qwen2-moe",
            "gemma3",
            "glm4-moe",
            "deepseek-v2-lite",
        ),
        "fp8-tensor": ("llama",),
        "packed": (
            "llama",
            "qwen3-moe",
            "mistral",
            "phi3",
            "qwen2",
            "qwen3",
            "qwen2-moe",
            "gemma3",
            "glm4-moe",
            "minimax-m2",
        ),
        "packed-experts": ("kimi-k2", "deepseek-v3", "deepseek-v2-lite"),
        "gptq": ("llama", "qwen3-moe"),
        "awq": ("llama", "qwen3-moe"),
    }.items()
    for base in bases
}
# SGLang's Llama looks for their scales under another name, and goes on without them.
REFUSED = ("llama-fp8-block",)
LINEAR = re.compile(
    r"(?P<module>.*\.(q|k|v|o|qkv|q_a|q_b|kv_b|gate|up|gate_up|down)_proj|.*\.kv_a_proj_with_mqa|.*\.w[123])\.weight"
)
NOT_EXPERTS = re.compile(r".*(self_attn|shared_experts|mlp\.(gate|up|down)_proj).*")


def make_quantized_model(name: str, cache_dir: Path, folder: Path) -> tuple[Path, Path]:
    """Write one of `QUANTIZED_MODELS` into `folder`, a link to its `original` too; returns (checkpoint, twin).

    Args:
        name: the model and the scheme.
        cache_dir: where the tiny models are kept.
        folder: an empty folder.
    """
    base, scheme_name = QUANTIZED_MODELS[name]
    scheme = SCHEMES[scheme_name]
    original = ensure_tiny_model(base, cache_dir, **CHANGES, **SHAPES.get(name, {}))
    (folder / "original").symlink_to(original)
    dtype = getattr(torch, scheme.dtype)
    tensors = {key: tensor.to(dtype) for key, tensor in load_file(original / "model.safetensors").items()}
    weights, twin = _quantize(tensors, scheme_name)
    config = json.loads((original / "config.json").read_text())
    _write(folder / "twin", config | {"dtype": "float32"}, twin)
    if scheme_name == "fp8-tensor":
        weights |= _input_scales(folder / "twin", weights)
    quantization = {"quantization_config": scheme.config, "dtype": scheme.dtype, "torch_dtype": scheme.dtype}
    _write(folder / name, config | quantization, weights)
    return folder / name, folder / "twin"


def quantized_modules(name: str, tensors: Tensors) -> list[str]:
    """Return the modules of an unquantized checkpoint that a scheme quantizes, by their names in it."""
    matches = [LINEAR.fullmatch(key) for key in tensors]
    modules = [match["module"] for match in matches if match]
    return [module for module in modules if name != "packed-experts" or not NOT_EXPERTS.fullmatch(module)]


def _quantize(tensors: Tensors, scheme_name: str) -> tuple[Tensors, Tensors]:
    """Return the tensors of the checkpoint, and the numbers that they stand for in float32."""
    chosen = set(quantized_modules(scheme_name, tensors))
    weights: Tensors = {}
    twin: Tensors = {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if module not in chosen:
            weights[name], twin[name] = tensor, tensor.float()
            continue
        quantize = SCHEMES[scheme_name].quantize
        if (
            scheme_name == "fp8-tensor"
        ):  # layers that SGLang joins have one scale, else it would round their weights again
            quantize = partial(
                fp8_tensor, largest=max(float(tensors[key].abs().max()) for key in _joined(name, tensors))
            )
        parts, twin[name] = quantize(tensor.float())
        weights |= {f"{module}.{part}": value for part, value in parts.items()}
    return weights, twin


def _joined(name: str, tensors: Tensors) -> list[str]:
    pattern = re.sub(r"\.(q|k|v)_proj", r"\\.(q|k|v)_proj", re.sub(r"\.(gate|up)_proj", r"\\.(gate|up)_proj", name))
    return [key for key in tensors if re.fullmatch(pattern, key)]


@torch.no_grad()
def _input_scales(twin: Path, weights: Tensors) -> Tensors:
    """Find how large the inputs of the quantized layers get, as a calibration does, with room to spare."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(twin, dtype=torch.float32, local_files_only=True)
    scales: Tensors = {}
    for name, module in model.named_modules():
        if f"{name}.weight_scale" in weights:
            module.register_forward_pre_hook(
                lambda _module, args, name=name: scales.update(
                    {f"{name}.input_scale": (2 * args[0].abs().max() / FP8_MAX).bfloat16().reshape(1)}
                )
            )
    ids = np.random.default_rng(0).integers(0, CHANGES["vocab_size"], (1, 256))
    model(torch.from_numpy(ids))
    return scales


def _write(folder: Path, config: dict[str, Any], tensors: Tensors) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"}
    )
