"""The models that are measured: the tests' tiny ones, one an architecture, quantized ones, and SmolLM2, a real one."""

import hashlib
import sys
from pathlib import Path

from record import ROOT

from tasks.engine.architectures import ARCHITECTURES
from tasks.smollm2 import build_once, ensure_smollm2, user_cache

sys.path.append(str(ROOT / "tests"))  # the makers of tiny models are there, since tests need them first
from tiny_configs import TINY_MODELS
from tiny_models import ensure_tiny_model

TESTS = ROOT / "tests"
SMOLLM2 = "smollm2"
# All but those that are refused. Without torch there is no module `quantized_models` to ask; a test holds the two to
# each other.
QUANTIZED = (
    "qwen3-fp8-block", "qwen3-moe-fp8-block", "deepseek-v3-fp8-block", "minimax-m2-fp8-block", "llama-fp8-channel",
    "qwen3-moe-fp8-channel", "mistral-fp8-channel", "phi3-fp8-channel", "qwen2-fp8-channel", "qwen2-moe-fp8-channel",
    "gemma3-fp8-channel", "glm4-moe-fp8-channel", "deepseek-v2-lite-fp8-channel", "llama-fp8-tensor", "llama-packed",
    "qwen3-moe-packed", "mistral-packed", "phi3-packed", "qwen2-packed", "qwen3-packed", "qwen2-moe-packed",
    "gemma3-packed", "glm4-moe-packed", "minimax-m2-packed", "kimi-k2-packed-experts", "deepseek-v3-packed-experts",
    "deepseek-v2-lite-packed-experts", "llama-gptq", "qwen3-moe-gptq", "llama-awq", "qwen3-moe-awq",
)  # fmt: skip
NAMES = (*TINY_MODELS, SMOLLM2, *QUANTIZED)


def ensure_model(name: str) -> tuple[Path, Path]:
    """Return the folder of a model in `NAMES`, and that of the same numbers for transformers; made where missing.

    Raises:
        KeyError: there is no such name.
        SmolLM2MissingError: it is SmolLM2, and its wheel is not installed.
    """
    if name in QUANTIZED:
        return _ensure_quantized(name)
    folder = ensure_smollm2() if name == SMOLLM2 else ensure_tiny_model(name, user_cache() / "tests")
    return folder, folder


def has_experts(name: str) -> bool:
    """Say whether a model in `TINY_MODELS`, or SmolLM2, is a mixture of experts."""
    entry = TINY_MODELS.get(name, {})
    return any(key.endswith("_experts") for key in entry.get("text_config", entry))


def deals_experts(name: str) -> bool:
    """Say whether such a model has experts that SGLang can deal out among GPUs."""
    return has_experts(name) and ARCHITECTURES[TINY_MODELS[name]["architectures"][0]].deals_experts


def is_dense(name: str) -> bool:
    """Say whether such a model has neither experts nor MLA, so that SGLang multiplies in the order of transformers."""
    return name == SMOLLM2 or not (has_experts(name) or ARCHITECTURES[TINY_MODELS[name]["architectures"][0]].mla)


def scheme_of(name: str) -> str:
    """Return how a model in `QUANTIZED` is quantized: `fp8-...`, `packed`, `gptq` or `awq`."""
    return name[min(name.index(kind) for kind in ("fp8-", "packed", "gptq", "awq") if kind in name) :]


def _ensure_quantized(name: str) -> tuple[Path, Path]:
    from quantized_models import make_quantized_model  # noqa: PLC0415 - imports torch

    cache = user_cache() / "tests"
    makers = (TESTS / file for file in ("quantized_models.py", "quantized_weights.py", "published_quantizations.py"))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in makers)).hexdigest()[:8]

    def make(staging: Path) -> None:
        make_quantized_model(name, cache, staging)

    folder = build_once(cache / f"quantized-{name}-{digest}", make)
    return folder / name, folder / "twin"
