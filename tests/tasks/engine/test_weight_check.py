"""A checkpoint that does not fill the model is refused when it is loaded, by real loads of SGLang."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.engine.architectures import ARCHITECTURES
from tasks.engine.base import EngineOptions
from tasks.engine.errors import ModelLoadError
from tasks.engine.loading import load_engine
from tasks.engine.weight_check import WeightCheck

Weights = dict[str, torch.Tensor]


def options(model: Path) -> EngineOptions:
    return EngineOptions(model, ("final",), "float32", "float32", "cpu", 64)


def changed(model: Path, folder: Path, change: Callable[[Weights], object]) -> Path:
    """A copy of a model with other weights."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("name", "weight", "parameter"),
    [
        ("llama", "model.layers.3.mlp.down_proj.weight", "layers.3.mlp.down_proj.weight"),
        ("llama", "model.layers.3.self_attn.k_proj.weight", "layers.3.self_attn.qkv_proj.weight"),  # part of one
        ("llama", "model.norm.weight", "model.norm.weight"),
        ("qwen3-moe", "model.layers.1.mlp.experts.5.up_proj.weight", "layers.1.mlp.experts.w13_weight"),
        ("minimax-m2", "model.layers.0.block_sparse_moe.e_score_correction_bias", "e_score_correction_bias"),
    ],
)
def test_a_weight_that_is_missing_is_named(
    tiny_model: Callable[[str], Path], tmp_path: Path, name: str, weight: str, parameter: str
) -> None:
    model = changed(tiny_model(name), tmp_path / "model", lambda weights: weights.pop(weight))
    with pytest.raises(ModelLoadError, match=rf"1 of \d+ parameters were not filled.*{parameter}"):
        load_engine(options(model))


def test_of_many_that_are_missing_some_are_named(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    def drop(weights: Weights) -> None:
        for name in [name for name in weights if ".layers.2." in name]:
            del weights[name]

    model = changed(tiny_model("qwen3"), tmp_path / "model", drop)
    with pytest.raises(ModelLoadError, match=r"8 of \d+ .*: model\.layers\.2\.[^,]*, [^,]*, [^,]* and 5 more"):
        load_engine(options(model))


def test_a_weight_that_sglang_would_skip_is_noticed(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """A bias that this architecture does not have; SGLang says nothing."""
    bias = {"model.layers.1.self_attn.q_proj.bias": torch.ones(256, dtype=torch.bfloat16)}
    model = changed(tiny_model("llama"), tmp_path / "model", lambda weights: weights.update(bias))
    with pytest.raises(ModelLoadError, match=r"for layer 1, SGLang's model has room for .*: it skipped some"):
        load_engine(options(model))


def test_weights_beside_the_language_model_may_be_skipped(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """The vision part of a wrapper, layers that predict further tokens, and frequencies that are computed anyway."""
    more = ("vision_tower.layers.0.weight", "mtp.layers.0.weight", "model.layers.0.self_attn.rotary_emb.inv_freq")
    zeros = {name: torch.zeros(1 << 20) for name in more}
    model = changed(tiny_model("minimax-m2"), tmp_path / "model", lambda weights: weights.update(zeros))
    load_engine(options(model)).close()


def test_a_class_of_sglang_that_skips_weights_is_noticed(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason why a text-only Llama-4 is loaded as the wrapper."""
    row = replace(ARCHITECTURES["Llama4ForCausalLM"], causal_lm="", loaded_as="")
    monkeypatch.setitem(ARCHITECTURES, "Llama4ForCausalLM", row)
    with pytest.raises(ModelLoadError, match=r"not filled.*experts"):
        load_engine(options(tiny_model("llama4-text")))


def quantized_layer(scales: int) -> torch.nn.Module:
    layer = torch.nn.Module()
    layer.quant_method = object()
    layer.weight_scale_inv = torch.nn.Parameter(torch.full((scales,), -1.0), requires_grad=False)
    layer.input_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    return layer


def test_scales_that_sglang_left_out_are_noticed() -> None:
    """As SGLang 0.5.17 leaves them out of a Llama in FP8 by blocks: it looks for them under another name."""
    layer = quantized_layer(scales=3)
    check = WeightCheck(layer, [layer], is_whole=False, has_scales=True)
    check.poison()
    with pytest.raises(ModelLoadError, match=r"1 of 1 parameters were not filled.*: weight_scale_inv;"):
        check.check()


def test_scales_of_joined_layers_keep_their_default_where_the_checkpoint_has_joined_them_too() -> None:
    layer = quantized_layer(scales=3)
    check = WeightCheck(layer, [layer], is_whole=False, has_scales=True)
    check.poison()
    layer.weight_scale_inv.data[0] = 2
    check.check()
    assert layer.weight_scale_inv.tolist() == [2, -1, -1]
    assert layer.input_scale == 1


def test_of_a_quantized_layer_the_weights_in_fp8_are_checked_and_the_rest_is_left() -> None:
    """Scales may stay at their defaults, and packed weights may have a padding of zeros."""
    layer = torch.nn.Module()
    layer.quant_method = object()
    layer.weight = torch.nn.Parameter(torch.zeros(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
    layer.input_scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
    layer.packed = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.int32), requires_grad=False)
    check = WeightCheck(layer, [layer], is_whole=False)
    check.poison()
    assert layer.input_scale == 1
    assert not layer.packed.any()
    layer.weight.data[:3] = 1
    with pytest.raises(ModelLoadError, match=r"1 of 1 parameters were not filled.*: weight;"):
        check.check()
    layer.weight.data[3] = 1
    check.check()
