"""A model folder as its config.json describes it; nothing is loaded."""

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.engine.architectures import ARCHITECTURES
from tasks.engine.errors import ModelNotFoundError, NotAModelError
from tasks.engine.quantizations import compute_dtypes, describe_quantization, rounds_inputs, widest_split

NEEDED = ("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings")
# Where checkpoints by NVIDIA's ModelOpt say how they are quantized, beside a config.json that says nothing of it.
MODELOPT_CONFIG = "hf_quant_config.json"
SHARD_INDEX = "model.safetensors.index.json"
# Fields of config.json with the number of experts.
EXPERT_COUNTS = ("num_experts", "n_routed_experts", "num_local_experts")
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a run needs to know of a model before it is loaded.

    Attributes:
        path: the model folder.
        architecture: first entry of `architectures` in config.json.
        num_layers: number of decoder blocks.
        hidden_size: width of a hidden state.
        vocab_size: rows of the embedding.
        num_heads: attention heads of a block; None where config.json leaves it to transformers.
        num_key_heads: those of them that have keys and values of their own; None as `num_heads`.
        context_length: most tokens of a sequence: `max_position_embeddings`, or less where SGLang is right for less.
        dtype: the checkpoint's own dtype.
        quantization: what the checkpoint is quantized to, in one line (`describe_quantization`), or None.
        compute_dtypes: dtypes that SGLang computes it in, the one to choose first.
        rounds_inputs: what enters a linear layer is rounded too, to FP8 or the like.
        num_experts: experts of a block that a router chooses from; 0 where there are none.
        widest_split: ranks at most among which SGLang may cut an expert of a quantized model; None: any number.
    """

    path: Path
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    num_heads: int | None
    num_key_heads: int | None
    context_length: int
    dtype: str
    quantization: str | None
    compute_dtypes: tuple[str, ...]
    rounds_inputs: bool
    num_experts: int = 0
    widest_split: int | None = None

    @property
    def has_experts(self) -> bool:
        """Whether it is a mixture of experts."""
        return self.num_experts > 1


def read_model(path: Path) -> ModelInfo:
    """Read a model folder's config.json.

    Raises:
        ModelNotFoundError: the folder does not exist.
        NotAModelError: it has no readable config.json, no weights or only a part of them, or lacks a needed field.
    """
    if not path.is_dir():
        raise ModelNotFoundError(
            f"model folder {path} does not exist, or is no folder; give a folder with config.json and weights"
        )
    config = _read_config(path)
    if not any(next(path.glob(pattern), None) for pattern in WEIGHT_PATTERNS):
        raise NotAModelError(f"{path} has config.json but no weights ({', '.join(WEIGHT_PATTERNS)}); is it complete?")
    _check_shards(path)
    _refuse_tar(path)
    return _describe(path, config)


def weight_files(path: Path) -> list[Path]:
    """List the files that hold the weights, sorted by name; safetensors where there are any, as SGLang prefers them."""
    for pattern in WEIGHT_PATTERNS:
        if found := sorted(path.glob(pattern)):
            return found
    return []


def _check_shards(path: Path) -> None:
    index = path / SHARD_INDEX
    if not index.is_file():
        return
    shards = {str(name) for name in _read_json(index).get("weight_map", {}).values()}
    if lacking := sorted(name for name in shards if not (path / name).is_file()):
        raise NotAModelError(
            f"{path} lacks {len(lacking)} of its {len(shards)} files of weights, first {lacking[0]}; "
            "fetch the model again"
        )


def _refuse_tar(path: Path) -> None:
    """Refuse weights as PyTorch saved them before 1.0: SGLang unpickles those with whatever code they name."""
    for file in (file for pattern in WEIGHT_PATTERNS[1:] for file in sorted(path.glob(pattern))):
        if tarfile.is_tarfile(file):
            raise NotAModelError(
                f"{file} is a tar archive, as PyTorch before 1.0 wrote weights; loading such may run code: "
                "save them as safetensors"
            )


def _read_config(path: Path) -> dict[str, Any]:
    file = path / "config.json"
    if not file.is_file():
        raise NotAModelError(f"{path} is not a model folder: it has no config.json; give a Hugging Face model folder")
    return _read_json(file)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise NotAModelError(f"{file} is not valid JSON ({error}); fetch the model again") from None
    if not isinstance(config, dict):
        raise NotAModelError(f"{file} holds a {type(config).__name__}, not an object; fetch the model again")
    return config


def _describe(path: Path, config: dict[str, Any]) -> ModelInfo:
    try:
        text = _text_config(config)
        quantization = _quantization_config(path, config, text)
        return ModelInfo(
            path=path,
            architecture=str(config["architectures"][0]),
            num_layers=int(text["num_hidden_layers"]),
            hidden_size=int(text["hidden_size"]),
            vocab_size=int(text["vocab_size"]),
            num_heads=_count(text, "num_attention_heads"),
            num_key_heads=_count(text, "num_key_value_heads", "num_attention_heads"),
            context_length=_context_length(str(config["architectures"][0]), text),
            dtype=str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or "bfloat16"),
            quantization=None if quantization is None else describe_quantization(quantization),
            compute_dtypes=compute_dtypes(quantization),
            rounds_inputs=rounds_inputs(quantization),
            num_experts=_count(text, *EXPERT_COUNTS) or 0,
            widest_split=widest_split(quantization, text.get("moe_intermediate_size")),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise NotAModelError(
            f"{path / 'config.json'} does not describe a causal language model: {type(error).__name__} {error}; "
            "architectures, num_hidden_layers, hidden_size, vocab_size and max_position_embeddings are needed"
        ) from None


def _count(text: dict[str, Any], *fields: str) -> int | None:
    """Return the first of `fields` that a config has."""
    return next((int(text[field]) for field in fields if text.get(field) is not None), None)


def _context_length(architecture: str, text: dict[str, Any]) -> int:
    context_length = int(text["max_position_embeddings"])
    row = ARCHITECTURES.get(architecture)
    if row is None or row.longest is None:
        return context_length
    field, default = row.longest
    return min(context_length, int(text.get(field, default) or context_length))


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part that describes the language model; of a model of text and more, its `text_config`."""
    text = config.get("text_config") or config
    if not isinstance(text, dict):
        raise TypeError(f"text_config is a {type(text).__name__}")
    if text is config or all(field in text for field in NEEDED):
        return text
    # Gemma-3 as published leaves out what transformers has as its default.
    from transformers import CONFIG_MAPPING  # noqa: PLC0415 - heavy, and hardly ever needed

    if config.get("model_type") not in CONFIG_MAPPING:
        return text
    defaults: dict[str, Any] = CONFIG_MAPPING[config["model_type"]].from_dict(config).get_text_config().to_dict()
    return defaults | text


def _quantization_config(path: Path, *configs: dict[str, Any]) -> dict[str, Any] | None:
    """Find what the weights are quantized to where SGLang looks for it: the model's config, the text's, or a file."""
    for config in configs:
        for key in ("quantization_config", "compression_config"):
            if (found := config.get(key)) is not None:
                return dict(found)
    file = path / MODELOPT_CONFIG
    if not file.is_file():
        return None
    return {"quant_method": "modelopt", **_read_json(file)["quantization"]}
