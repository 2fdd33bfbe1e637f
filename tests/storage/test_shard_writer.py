"""Bytes are copied between files of one file system and of two, wholly or not without a word."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from storage import shard_writer
from storage.errors import TornObjectError
from storage.shard_writer import copy_bytes

DATA = np.random.default_rng(0).bytes(3_000_000)


def copy(source: Path, target: Path, offset: int, position: int, count: int) -> bytes:
    with source.open("rb") as there, target.open("w+b") as here:
        copy_bytes(there.fileno(), offset, here.fileno(), position, count)
    return target.read_bytes()


@pytest.mark.parametrize("call_bytes", [1000, 1 << 20, 16 << 20])
def test_a_range_is_copied_to_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call_bytes: int) -> None:
    monkeypatch.setattr(shard_writer, "CALL_BYTES", call_bytes)
    source = tmp_path / "source"
    source.write_bytes(DATA)
    assert copy(source, tmp_path / "target", 777, 100, 54_321) == bytes(100) + DATA[777 : 777 + 54_321]


def test_a_range_is_copied_to_another_file_system(tmp_path: Path, small_disk: Callable) -> None:
    source = small_disk("size=8m") / "source"
    source.write_bytes(DATA)
    assert source.stat().st_dev != tmp_path.stat().st_dev
    assert copy(source, tmp_path / "target", 1, 0, len(DATA) - 1) == DATA[1:]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_source_that_ends_early_is_torn(tmp_path: Path, small_disk: Callable, elsewhere: bool) -> None:
    source = (small_disk("size=8m") if elsewhere else tmp_path) / "source"
    source.write_bytes(DATA)
    with pytest.raises(TornObjectError, match="a source ends 1 bytes before"):
        copy(source, tmp_path / "target", 0, 0, len(DATA) + 1)
