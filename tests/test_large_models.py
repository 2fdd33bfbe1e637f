"""The maker of large random checkpoints, on a CPU with small ones."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from large_models import LARGE_MODELS, make_large_model
from quantized_models import CHANGES
from safetensors import safe_open
from tiny_configs import TINY_MODELS
from tiny_models import ensure_tiny_model

from tasks.engine.base import EngineOptions
from tasks.engine.canary import check_engine
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model, weight_files
from tasks.smollm2 import user_cache

SMALL = TINY_MODELS["llama"] | CHANGES


def described(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Return dtype and shape of every tensor of a checkpoint."""
    found = {}
    for file in weight_files(folder):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - no mapping
                part = tensors.get_slice(name)
                found[name] = (part.get_dtype(), part.get_shape())
    return found


@pytest.mark.parametrize("name", ["deepseek-v3-fp8-block", "kimi-k2-packed-experts"])
def test_a_quantized_one_has_the_tensors_of_a_quantized_one(
    quantized: Callable[[str], tuple[Path, Path]], tmp_path: Path, name: str
) -> None:
    folder, _ = quantized(name)
    config = json.loads((folder / "config.json").read_text())
    made = make_large_model(config, tmp_path, device="cpu")
    ours, expected = described(made), described(folder)
    for bias in [key for key in ours if key.endswith("bias")]:
        assert ours.pop(bias)[0] == "F32", "as published; the tiny models have all in bf16"
        expected.pop(bias)
    assert ours == expected
    assert read_model(made).quantization == read_model(folder).quantization


def test_an_unquantized_one_has_the_tensors_of_one_saved_by_transformers(tmp_path: Path) -> None:
    saved = ensure_tiny_model("llama", user_cache() / "tests", **CHANGES)
    assert described(make_large_model(SMALL, tmp_path, device="cpu")) == described(saved)


@pytest.mark.parametrize("name", ["llama", "deepseek-v3", "kimi-k2"])
def test_sglang_runs_it_and_the_canary_passes(tmp_path: Path, name: str) -> None:
    model = read_model(make_large_model(TINY_MODELS[name] | CHANGES, tmp_path, device="cpu"))
    options = EngineOptions(
        model=model.path,
        layers=(2, 4, "final"),
        compute_dtype="float32",
        output_dtype="float32",
        device="cpu",
        max_batch_tokens=512,
    )
    engine = load_engine(options)
    try:
        check_engine(engine, model, None)
    finally:
        engine.close()


def test_it_is_cut_into_shards_that_the_index_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("large_models.SHARD_BYTES", 1 << 20)
    make_large_model(SMALL, tmp_path, device="cpu")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(weight_files(tmp_path)) > 2
    assert {tmp_path / name for name in index.values()} == set(weight_files(tmp_path))
    assert set(index) == set(described(tmp_path))


@pytest.mark.parametrize("name", LARGE_MODELS)
def test_packed_and_rounded_numbers_are_as_large_as_the_others(tmp_path: Path, name: str) -> None:
    """Else experts would drown, or drown the rest."""
    small: dict[str, Any] = LARGE_MODELS[name] | CHANGES | {"hidden_size": 256, "intermediate_size": 512}
    make_large_model(small | {"num_attention_heads": 8, "num_key_value_heads": 8}, tmp_path, device="cpu")
    with safe_open(weight_files(tmp_path)[0], "pt") as tensors:
        module = "model.layers.1.mlp.experts.0.up_proj" if "n_routed_experts" in small else "model.layers.1.mlp.up_proj"
        if name.endswith("fp8-block"):
            scale = tensors.get_tensor(f"{module}.weight_scale_inv").mean()
            values = tensors.get_tensor(f"{module}.weight").float() * scale
        elif name.endswith("packed-experts"):
            words = tensors.get_tensor(f"{module}.weight_packed")
            nibbles = torch.stack([(words >> 4 * place) & 15 for place in range(8)]).float() - 8
            values = nibbles * tensors.get_tensor(f"{module}.weight_scale").float().mean()
        else:
            values = tensors.get_tensor(f"{module}.weight").float()
    assert float(values.std()) == pytest.approx(0.02, rel=0.05)
