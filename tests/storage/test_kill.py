"""SIGKILL at any moment: what is committed is whole, what is not is not seen, and a rerun completes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from record import read_results

from storage import columns, init_store, objects
from storage.files import staging
from storage.objects import ObjectWriter

MATRIX = Path(__file__).parents[2] / "benchmarks" / "crash_matrix.py"


def test_after_a_kill_at_any_moment_nothing_is_lost_twice_there_or_invalid(tmp_path: Path) -> None:
    """Writer, compaction, merge, collection and repair; at lines of ours, before changes of the file system, in C."""
    results = tmp_path / "results"
    command = [sys.executable, str(MATRIX), "--runs", "40", "--folder", str(tmp_path), "--results", str(results)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (document,) = read_results("crash-matrix", results)
    figures = document["figures"]
    assert figures["killed"] >= 40
    assert {figures[what] for what in ("lost", "duplicate", "invalid", "extra", "leftover")} == {0}
    assert set(figures["by_work"]) == {"write", "compact", "merge", "collect", "repair"}
    for moments in figures["by_work"].values():
        assert {"line", "change"} <= set(moments), "a line and a change always come by, whatever the machine's speed"


@pytest.mark.parametrize(
    "name", ["{host}-{pid}-00", "other-host.1-1-00", "{container}-{dead}-00", "not-ours", "{host}-x-00"]
)
def test_staging_of_the_living_and_of_other_hosts_is_left_alone(tmp_path: Path, name: str) -> None:
    init_store(tmp_path / "s")
    dead = subprocess.Popen(["true"])
    dead.wait()
    with staging(tmp_path / "s") as mine:
        host = mine.name.rsplit("-", 2)[0]
    names = {"host": host, "container": f"{host}0", "pid": os.getpid(), "dead": dead.pid}
    folder = tmp_path / "s/tmp" / name.format(**names)
    folder.mkdir()
    (tmp_path / "s/tmp" / "{host}-{dead}-00".format(**names)).mkdir()
    init_store(tmp_path / "s")
    assert list((tmp_path / "s/tmp").iterdir()) == [folder]


@pytest.mark.parametrize("moment", range(5))
def test_an_object_whose_staging_was_removed_is_not_committed(
    make_filled: Callable, sample_of: Callable, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Somebody clears tmp by hand while we write: no part of the object may come into its place."""
    filled = make_filled(())
    write_file, calls = objects.write_file, iter(range(100))

    def write_then_clear(folder: Path, name: str, parts: Iterable[bytes]) -> int:
        num_bytes = write_file(folder, name, parts)
        if next(calls) == moment:
            shutil.rmtree(filled.path / "tmp")
        return num_bytes

    monkeypatch.setattr(objects, "write_file", write_then_clear)
    monkeypatch.setattr(columns, "write_file", write_then_clear)
    with pytest.raises(FileNotFoundError):
        ObjectWriter(filled.path, filled.spec).write(*sample_of(20, 0))
    assert not filled.objects()
    assert not (filled.path / "tmp").exists()
