"""SIGKILL at any moment: what is committed is whole, what is not is not seen, and a rerun completes."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import columns, init_store, objects, open_store
from storage.checks import check_store
from storage.files import staging
from storage.objects import ObjectWriter

PRELUDE = f"""
import os, signal, sys
from pathlib import Path
from typing import Any
sys.path.insert(0, {str(Path(__file__).parent)!r})
from conftest import SPEC, make_sample
store, fatal_line, num_lines = Path(sys.argv[1]), int(sys.argv[2]), 0
def count(frame, event, _):
    global num_lines
    if not frame.f_code.co_filename.startswith({str(Path(objects.__file__).parent)!r}):
        return None
    num_lines += event == "line"
    if event == "line" and num_lines == fatal_line:
        os.kill(os.getpid(), signal.SIGKILL)
    return count
"""
WRITE = (
    PRELUDE
    + """
from storage.objects import ObjectWriter
sys.settrace(count)
writer = ObjectWriter(store, SPEC)
for seed in range(3):
    writer.write(*make_sample(60, seed))
print(num_lines)
"""
)
COMPACT = (
    PRELUDE
    + """
from storage.packs import compact
sys.settrace(count)
compact(store, SPEC.digest(), shard_bytes=512 * SPEC.bytes_per_token)
print(num_lines)
"""
)
LENGTHS = (700, 300, 1, 60)


def run(script: str, store: Path, fatal_line: int = 0) -> int:
    """Run a script, which kills itself at that line of all that it runs in `storage`; return how many lines it ran.

    Lines, not milliseconds: a machine is slow or fast, but between two lines of ours it always comes by.
    """
    command = [sys.executable, "-c", script, str(store), str(fatal_line)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120, check=False)
    assert child.returncode == (-signal.SIGKILL if fatal_line else 0)
    return fatal_line or int(child.stdout)


def staged(store: Path) -> list[Path]:
    folder = store / "tmp"
    return list(folder.iterdir()) if folder.exists() else []


def test_no_sample_is_torn_by_a_kill_in_mid_write(make_filled: Callable, tmp_path: Path) -> None:
    num_lines = run(WRITE, make_filled(()).path)
    left_behind = 0
    for fatal_line in [*np.random.default_rng(5).integers(1, num_lines, 10), num_lines]:
        filled = make_filled((), path=tmp_path / str(fatal_line))
        run(WRITE, filled.path, fatal_line)
        left_behind += len(staged(filled.path))
        report = check_store(filled.path, filled.digest)
        assert not report.findings
        assert report.checked == len(open_store(filled.path))
        run(WRITE, filled.path)
        expect_three(filled)
    assert left_behind, "no kill hit a write: the test shows nothing"


def expect_three(filled: Any) -> None:
    init_store(filled.path)
    assert not staged(filled.path), "what the dead left is swept"
    assert len(open_store(filled.path)) == 3
    for seed in range(3):
        filled.write(60, seed)
    expect_all(filled)


def expect_all(filled: Any) -> None:
    store = open_store(filled.path)
    assert set(store) == set(filled.samples)
    for name, (_, states) in filled.samples.items():
        assert store[name].hidden_states().tobytes() == states.tobytes()


def test_no_sample_is_lost_by_a_kill_in_mid_compaction(make_filled: Callable, tmp_path: Path) -> None:
    num_lines = run(COMPACT, make_filled(LENGTHS).path)
    half_done = 0
    for fatal_line in [*np.random.default_rng(6).integers(1, num_lines, 12), num_lines]:
        filled = make_filled(LENGTHS, path=tmp_path / str(fatal_line))
        run(COMPACT, filled.path, fatal_line)
        expect_all(filled)
        assert not check_store(filled.path, filled.digest).findings
        half_done += bool(filled.objects() and (filled.packs() or staged(filled.path)))
        run(COMPACT, filled.path)
        init_store(filled.path)
        assert not staged(filled.path)
        assert not filled.objects()
        expect_all(filled)
    assert half_done, "no kill hit the compaction: the test shows nothing"


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
