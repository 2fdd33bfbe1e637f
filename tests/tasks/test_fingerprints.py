import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.fingerprints import model_fingerprint


@pytest.fixture
def model(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def change_config(model: Path, **fields: object) -> None:
    file = model / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_the_same_model_elsewhere_and_at_another_time_is_the_same(model: Path, tiny_model: Callable) -> None:
    expected = model_fingerprint(tiny_model("llama"))
    assert model_fingerprint(model) == expected
    os.utime(model / "model.safetensors", (1, 1))
    assert model_fingerprint(model.rename(model.with_name("moved"))) == expected


def test_one_flipped_byte_of_the_weights_is_another_model(model: Path) -> None:
    before = model_fingerprint(model)
    size = (model / "model.safetensors").stat().st_size
    with (model / "model.safetensors").open("r+b") as file:
        file.seek(size // 2)
        byte = file.read(1)[0]
        file.seek(size // 2)
        file.write(bytes([byte ^ 1]))
    assert model_fingerprint(model) != before


@pytest.mark.parametrize("fields", [{"rms_norm_eps": 1e-3}, {"rope_theta": 5e5}, {"something_new": 1}])
def test_a_config_field_that_may_change_numbers_is_another_model(model: Path, fields: dict) -> None:
    before = model_fingerprint(model)
    change_config(model, **fields)
    assert model_fingerprint(model) != before


def test_who_saved_the_config_and_how_it_is_laid_out_do_not_matter(model: Path) -> None:
    before = model_fingerprint(model)
    change_config(model, transformers_version="4.0.0", _name_or_path="elsewhere")
    assert model_fingerprint(model) == before


def test_the_tokenizer_and_papers_beside_the_model_do_not_matter(model: Path) -> None:
    before = model_fingerprint(model)
    (model / "README.md").write_text("A model.")
    (model / "tokenizer.json").unlink()
    (model / "generation_config.json").write_text("{}")
    assert model_fingerprint(model) == before


def test_weights_that_are_not_read_do_not_matter_but_shards_and_code_do(model: Path) -> None:
    before = model_fingerprint(model)
    (model / "pytorch_model.bin").write_bytes(b"old weights, which SGLang leaves alone beside safetensors")
    assert model_fingerprint(model) == before
    (model / "model-00002-of-00002.safetensors").write_bytes(b"more")
    with_shard = model_fingerprint(model)
    (model / "modeling_own.py").write_text("pass")
    assert len({before, with_shard, model_fingerprint(model)}) == 3
