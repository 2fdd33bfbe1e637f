"""`quantization_config` as published checkpoints have it, what names it in a spec, and SGLang's class for it."""

from typing import Any

# deepseek-ai/DeepSeek-V3, and Qwen/Qwen3-*-FP8.
FP8_BLOCK: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}


def _weights(num_bits: int, kind: str, strategy: str, group_size: int | None = None) -> dict[str, Any]:
    return {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": group_size,
        "num_bits": num_bits,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": strategy,
        "symmetric": True,
        "type": kind,
    }


def _compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None, ignore: list[str]) -> dict[str, Any]:
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"], "weights": weights}
    return {
        "config_groups": {"group_0": group},
        "format": form,
        "global_compression_ratio": None,
        "ignore": ignore,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


_TOKENS = {**_weights(8, "float", "token"), "dynamic": True, "observer": None}
_INPUTS = _weights(8, "float", "tensor")
# RedHatAI/*-FP8-dynamic.
FP8_CHANNEL = _compressed("float-quantized", _weights(8, "float", "channel"), _TOKENS, ["lm_head"])
# RedHatAI/*-FP8.
FP8_TENSOR = _compressed("float-quantized", _weights(8, "float", "tensor"), _INPUTS, ["lm_head"])
# moonshotai/Kimi-K2-Thinking.
PACKED = _compressed(
    "pack-quantized",
    _weights(4, "int", "group", 32),
    None,
    [
        "lm_head",
        "re:.*self_attn.*",
        "re:.*shared_experts.*",
        "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
    ],
)
# Qwen/Qwen2.5-*-Instruct-GPTQ-Int4.
GPTQ: dict[str, Any] = {
    "bits": 4,
    "damp_percent": 0.01,
    "desc_act": False,
    "group_size": 128,
    "model_file_base_name": None,
    "model_name_or_path": None,
    "quant_method": "gptq",
    "static_groups": False,
    "sym": True,
    "true_sequential": True,
}
# Qwen/Qwen2.5-*-Instruct-AWQ.
AWQ: dict[str, Any] = {
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
# openai/gpt-oss-20b.
MXFP4: dict[str, Any] = {
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
    "quant_method": "mxfp4",
}

PUBLISHED: dict[str, tuple[dict[str, Any], str]] = {
    "fp8-block": (FP8_BLOCK, "fp8 activation_scheme=dynamic fmt=e4m3 weight_block_size=128x128"),
    "fp8-channel": (
        FP8_CHANNEL,
        (
            "compressed-tensors format=float-quantized group(input_activations(dynamic=true num_bits=8 strategy=token "
            "symmetric=true type=float) weights(dynamic=false num_bits=8 strategy=channel symmetric=true type=float))"
        ),
    ),
    "fp8-tensor": (
        FP8_TENSOR,
        (
            "compressed-tensors format=float-quantized group(input_activations(dynamic=false num_bits=8 "
            "strategy=tensor symmetric=true type=float) weights(dynamic=false num_bits=8 "
            "strategy=tensor symmetric=true type=float))"
        ),
    ),
    "packed": (
        PACKED,
        (
            "compressed-tensors format=pack-quantized group(weights(dynamic=false group_size=32 num_bits=4 "
            "strategy=group symmetric=true type=int))"
        ),
    ),
    "gptq": (GPTQ, "gptq bits=4 desc_act=false group_size=128 sym=true"),
    "awq": (AWQ, "awq bits=4 group_size=128 version=gemm zero_point=true"),
    "mxfp4": (MXFP4, "mxfp4"),
}
