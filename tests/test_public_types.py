"""What `make check` says of the types of the public API holds when it runs: each function of public_types.py does."""

import json
import tomllib
from pathlib import Path

import public_types
import pytest
from jobs import GOOD, write_lines
from pages import ROOT

from flows import RunResult


@pytest.fixture(scope="module")
def result(tiny_model, tmp_path_factory, with_server) -> RunResult:  # noqa: ARG001 - flows use it
    folder = tmp_path_factory.mktemp("typed")
    data = write_lines(folder / "chats.jsonl", map(json.dumps, GOOD[:2]))
    return public_types.extract(tiny_model("llama"), data, folder / "states")


def test_each_use_runs(result: RunResult, tmp_path: Path) -> None:
    store, digest = result.store.path, result.report.tokens_digest
    assert isinstance(store, Path)

    public_types.read(store)
    public_types.read_tokens(store, digest)
    public_types.train(store, digest)
    public_types.maintain(store, tmp_path / "files")


def test_mypy_looks_at_them() -> None:
    assert "public_types" in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["modules"]
