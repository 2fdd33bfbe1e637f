"""Code in a model folder is not run, whoever would allow it."""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tasks.engine.errors import NotAModelError
from tasks.engine.models import read_model
from tasks.errors import TokenizerError
from tasks.tokenizer_sources import load_source

MODULE = "from pathlib import Path\nPath(__file__).parents[0]\nopen({marker!r}, 'w').close()\n"
LOAD = """
import sys
from transformers import AutoConfig
{forbid}
try:
    AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True)
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
FORBID = "from tasks.engine.model_code import forbid_model_code; forbid_model_code()"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a model folder with a config and a tokenizer of its own code, which leaves `owned` where it is run."""
    model = tmp_path / "model"
    model.mkdir()
    maps = {"AutoConfig": "own.OwnConfig", "AutoTokenizer": ["own.OwnTokenizer", None]}
    (model / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": maps}))
    (model / "tokenizer_config.json").write_text(
        json.dumps({"auto_map": maps, "tokenizer_class": "OwnTokenizer", "chat_template": "x"})
    )
    (model / "own.py").write_text(MODULE.format(marker=str(tmp_path / "owned")))
    return model


@pytest.mark.parametrize("forbid", [FORBID, ""], ids=["forbidden", "allowed"])
def test_what_asks_for_code_of_a_model_folder_is_refused(folder: Path, tmp_path: Path, forbid: str) -> None:
    command = [sys.executable, "-c", LOAD.format(forbid=forbid), str(folder)]
    environment = {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, env=environment)
    assert (tmp_path / "owned").exists() == (not forbid), done.stdout + done.stderr
    if forbid:
        assert "ModelLoadError: the model folder has code of its own ('OwnConfig'), which is never run" in done.stdout


def test_a_tokenizer_with_code_of_its_own_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="without code from the model folder"):
        load_source(folder)
    assert not (tmp_path / "owned").exists()


def test_weights_that_are_unpickled_with_their_code_are_refused(tmp_path: Path) -> None:
    numbers = dict.fromkeys(("num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"), 8)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **numbers}))
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4")
    assert read_model(tmp_path).hidden_size == 8
    with tarfile.open(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.add(tmp_path / "config.json", "pickle")
    with pytest.raises(NotAModelError, match=r"pytorch_model.bin is a tar archive, .*: save them as safetensors"):
        read_model(tmp_path)
