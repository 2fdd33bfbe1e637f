import json
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("flows", "tasks", "storage")
INFO = "aerie_hidden_states-0.1.0.dist-info"


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """Build the source distribution, and the wheel out of it, from a copy: a build writes into its source."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for folder in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", out, source], check=True)
    return out


@pytest.fixture(scope="module")
def wheel(built) -> ZipFile:
    return ZipFile(next(built.glob("*.whl")))


def test_the_wheel_takes_three_top_level_names_and_no_more(wheel):
    assert {name.split("/")[0] for name in wheel.namelist()} == {*PACKAGES, INFO}


def test_the_wheel_has_every_module_and_no_test(wheel):
    ours = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}

    assert {name for name in wheel.namelist() if name.endswith(".py")} == ours


def test_the_wheel_says_that_it_is_typed(wheel):
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(wheel.namelist())


def test_the_demo_data_is_in_the_wheel(wheel):
    lines = wheel.read("flows/data/mt_bench_smollm2.jsonl").splitlines()

    assert len(lines) == 70
    assert all(len(json.loads(line)["messages"]) == 4 for line in lines)
    assert b"FastChat" in wheel.read("flows/data/README.md")


def test_an_index_would_refuse_the_wheel(wheel):
    metadata = HeaderParser().parsestr(wheel.read(f"{INFO}/METADATA").decode())

    assert "Private :: Do Not Upload" in metadata.get_all("Classifier")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert f"{INFO}/licenses/LICENSE" in wheel.namelist()


def test_the_source_distribution_has_what_the_wheel_has(built, wheel):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        files = {name.split("/", 1)[-1] for name in archive.getnames()}

    assert {name for name in wheel.namelist() if not name.startswith(INFO)} <= files


def test_an_installed_wheel_says_its_version_and_that_of_the_store(built, tmp_path):
    """In an environment of its own, where all but ours comes from the one of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, next(built.glob("*.whl"))], check=True)
    (site / "pinned.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    aerie = [tmp_path / "venv" / "bin" / "aerie", "--version"]
    done = subprocess.run(aerie, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert done.stdout == "aerie 0.1.0 (store format 1)\n"
    where = [python, "-c", "import storage; print(storage.__file__)"]
    found = subprocess.run(where, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    assert found.stdout.startswith(str(site))


def test_the_source_distribution_has_no_tests(built):
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        assert not [name for name in archive.getnames() if "/tests" in name]
