"""The benchmark of exports measures what it says, on a store small enough for a test."""

from pathlib import Path

import export
import pytest

from tasks.trainer_files.formats import FORMATS


def test_each_format_is_exported_beside_decoding_and_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "HIDDEN_SIZE", 64)
    monkeypatch.setattr(export, "NUM_SAMPLES", 3)
    export.prepare(tmp_path / "store")
    figures = export.measure(tmp_path, 1)
    assert set(figures) == set(FORMATS)
    for name in FORMATS:
        found = figures[name]
        assert found["gigabytes"] > 0
        assert all(rate["per_second"] > 0 for rate in found["rate"].values())
        assert found["to_the_slower"] == max(found["to"].values()) > 0
        assert found["cpu_to_both"] > 0
    assert not (tmp_path / "files").exists()
