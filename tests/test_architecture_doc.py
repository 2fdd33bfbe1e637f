"""docs/architecture.md has one bullet a module: none is missing, none is of the past."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
PACKAGES = ("storage", "tasks.engine", "tasks.inputs", "tasks.trainer_files", "tasks", "flows")


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks", "examples"])
def test_every_module_has_its_bullet_and_every_bullet_its_module(package):
    [section] = re.findall(rf"^### {re.escape(package)}: .*\n((?:- .*\n)+)", PAGE, re.MULTILINE)
    bullets = re.findall(r"^- `(\w+)`: \S", section, re.MULTILINE)

    assert sorted(bullets) == modules_of(package)
    assert len(bullets) == len(section.splitlines())


def test_the_packages_are_those_of_the_source_tree():
    packages = {path.parent.relative_to(ROOT).as_posix().replace("/", ".") for path in init_files()}

    assert set(re.findall(r"^### ([\w.]+): ", PAGE, re.MULTILINE)) == packages | {"benchmarks", "examples"}


def modules_of(package: str) -> list[str]:
    folder = ROOT / package.replace(".", "/")
    return sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def init_files() -> list[Path]:
    return [path for package in ("flows", "tasks", "storage") for path in (ROOT / package).rglob("__init__.py")]
