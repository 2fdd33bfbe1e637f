"""What a job is made of, before any work starts."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hub_caches import REVISION, fill_cache
from jobs import write_lines

from flows import Settings, job
from flows.job import prepare_job
from flows.progress import LineProgress


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "plain"))


def settings_for(model: str | Path, folder: Path) -> Settings:
    return Settings(model=model, data=write_lines(folder / "chats.jsonl"), store=folder / "store", devices="cpu")


def test_a_model_by_its_hub_id_is_the_model_of_a_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The states have one name, wherever the model came from; the revision is for people."""
    from huggingface_hub import constants

    snapshot = fill_cache(tmp_path / "cache", model)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    by_id, by_folder = (prepare_job(settings_for(name, tmp_path)) for name in ("org/tiny", model))
    assert by_id.model.path == snapshot
    assert (by_id.revision, by_folder.revision) == (REVISION, None)
    assert by_id.spec_digest == by_folder.spec_digest
    assert by_id.tokens_spec == by_folder.tokens_spec


def test_reading_a_large_model_is_shown(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    size = (model / "model.safetensors").stat().st_size
    lines: list[str] = []
    prepare_job(settings_for(model, tmp_path), LineProgress(lines.append))
    assert lines == [], "a small one is read in silence"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty too"))
    monkeypatch.setattr(job, "QUIET_BYTES", size)
    prepare_job(settings_for(model, tmp_path), LineProgress(lines.append))
    assert lines[0] == f"fingerprint: {size:,} bytes"
    assert lines[-1].startswith(f"fingerprint: {size:,} of {size:,} bytes")
