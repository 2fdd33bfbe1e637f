"""Data files, a store and a model folder to tokenize with."""

import json
import shutil

import pytest

from storage.store import init_store


@pytest.fixture
def write(tmp_path):
    """Return a function that writes rows (objects, or bytes as they are) to a file."""

    def write(*rows, name="chats.jsonl"):
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


@pytest.fixture
def root(tmp_path):
    init_store(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def model_copy(smollm2, tmp_path):
    """Return a folder with SmolLM2's tokenizer, free to be changed."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        shutil.copyfile(smollm2 / name, folder / name)
    return folder
