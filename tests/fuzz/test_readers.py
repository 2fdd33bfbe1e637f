"""No input makes a reader raise others than our errors, take over 1 GiB, hang or die; `benchmarks/fuzz.py` has more."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import fuzz
import fuzz_child
import pytest
from fuzz_base import Target
from fuzz_targets import READERS

CHILD = Path(fuzz_child.__file__)
COUNT = 400


@pytest.mark.parametrize("reader", READERS)
def test_hostile_input_is_read_or_refused_by_our_errors(reader: str, tmp_path: Path) -> None:
    """Hypothesis draws the inputs and shrinks one that is a fault."""
    command = [sys.executable, "-W", "ignore", str(CHILD), reader, str(tmp_path / "files"), "--hypothesis"]
    done = subprocess.run([*command, "--count", str(COUNT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    *faults, summary = map(json.loads, done.stdout.splitlines())
    assert faults == []
    assert sum(summary["outcomes"].values()) >= COUNT
    assert len(summary["outcomes"]) > 1  # neither is all read nor all refused alike


class BadReader(Target):
    """A reader with faults."""

    errors = (LookupError,)

    def make(self, dice: Random) -> str:
        return dice.choice(["sound", "refused", "two lines", "other", "slow", "large"])

    def read(self, made: str) -> None:
        if made == "refused":
            raise KeyError(made)
        if made == "two lines":
            raise LookupError("one\ntwo")
        if made == "other":
            raise ZeroDivisionError(made)
        if made == "large":
            raise MemoryError(made)
        while made == "slow":
            pass


def test_faults_are_told_from_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_child, "INPUT_SECONDS", 1)
    before = signal.signal(signal.SIGALRM, fuzz_child._interrupt)
    reader = BadReader(tmp_path)
    try:
        made = {reader.make(Random(seed)): seed for seed in range(30)}  # noqa: S311 - inputs are to be made again
        found = {name: fuzz_child.try_input(reader, Random(seed)) for name, seed in made.items()}  # noqa: S311
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found.pop("sound") == ("read", None)
    assert found.pop("refused") == ("KeyError", None)
    assert {made: fault["error"].split(":")[0] for made, (_, fault) in found.items() if fault} == {
        "two lines": "LookupError",
        "other": "ZeroDivisionError",
        "slow": "TooLongError",
        "large": "MemoryError",
    }


def test_memory_is_bounded_by_the_kernel() -> None:
    code = "import fuzz_child; fuzz_child.limit_memory(); bytearray(2 << 30)"
    folders = os.pathsep.join(map(str, [CHILD.parent, CHILD.parent.parent]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "MemoryError" in done.stderr


DYING = """
import json, os, pathlib, signal, sys
folder, first, count = pathlib.Path(sys.argv[2]), int(sys.argv[4]), int(sys.argv[6])
folder.mkdir(exist_ok=True)
for number in range(first, first + count):
    (folder / "progress").write_bytes(number.to_bytes(8, "little"))
    if number == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
print(json.dumps({"outcomes": {"read": count}, "peak_bytes": 0}))
"""


def test_a_death_is_a_fault_and_the_inputs_behind_it_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child.py"
    child.write_text(DYING)
    monkeypatch.setattr(fuzz, "CHILD", child)
    found = fuzz.fuzz("jsonl", 10, tmp_path / "files")
    assert found["inputs"] == 10
    assert found["outcomes"] == {"read": 6, "before a death": 3, "fault": 1}
    assert found["examples"][0]["number"] == 3
