"""SIGKILL at any moment: what is committed is whole, what is not is not seen, and a rerun completes."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest

from storage import columns, init_store, objects, open_store
from storage.checks import check_store
from storage.files import staging
from storage.objects import ObjectWriter

PRELUDE = f"""
import sys; from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
from conftest import SPEC, make_sample
store = Path(sys.argv[1])
"""
WRITE = (
    PRELUDE
    + """
from storage.objects import ObjectWriter
writer = ObjectWriter(store, SPEC)
print("started", flush=True)
for seed in range(60):
    writer.write(*make_sample(2000, seed))
"""
)
COMPACT = (
    PRELUDE
    + """
from storage.packs import compact
print("started", flush=True)
compact(store, SPEC.digest(), shard_bytes=512 * SPEC.bytes_per_token)
"""
)


def run(script: str, store: Path, kill_after_seconds: float | None) -> int:
    """Run a script on a store; kill it so long after it began to work. Return its exit status."""
    child = subprocess.Popen([sys.executable, "-c", script, str(store)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    if kill_after_seconds is not None:
        time.sleep(kill_after_seconds)
        child.kill()
    child.communicate(timeout=60)
    return child.returncode


def staged(store: Path) -> list[Path]:
    return list((store / "tmp").iterdir())


def test_no_sample_is_torn_by_a_kill_in_mid_write(make_filled: Callable) -> None:
    filled = make_filled(())
    dice = np.random.default_rng(5)
    left_behind = 0
    for _ in range(6):
        run(WRITE, filled.path, dice.uniform(0.01, 0.15))
        left_behind += len(staged(filled.path))
        report = check_store(filled.path, filled.digest)
        assert not report.findings
        assert report.checked == len(open_store(filled.path))
    assert left_behind, "no kill hit a write: the test shows nothing"
    assert run(WRITE, filled.path, None) == 0
    init_store(filled.path)
    assert not staged(filled.path), "what the dead left is swept"
    store = open_store(filled.path)
    assert len(store) == 60
    for seed in range(60):
        filled.write(2000, seed)
    for name, (_, states) in filled.samples.items():
        assert store[name].hidden_states().tobytes() == states.tobytes()


def test_no_sample_is_lost_by_a_kill_in_mid_compaction(make_filled: Callable) -> None:
    filled = make_filled((700, 300, 1, 2000) * 8)
    dice = np.random.default_rng(6)
    killed = 0
    for _ in range(5):
        killed += run(COMPACT, filled.path, dice.uniform(0.0, 0.08)) != 0
        store = open_store(filled.path)
        assert set(store) == set(filled.samples)
        assert not check_store(filled.path, filled.digest).findings
        if not filled.objects():
            break
    assert killed, "no kill hit the compaction: the test shows nothing"
    assert run(COMPACT, filled.path, None) == 0
    init_store(filled.path)
    assert not staged(filled.path)
    assert not filled.objects()
    store = open_store(filled.path)
    for name, (_, states) in filled.samples.items():
        assert store[name].hidden_states().tobytes() == states.tobytes()


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
