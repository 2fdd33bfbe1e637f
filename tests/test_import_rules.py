import shutil
import subprocess
import sys
import sysconfig
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = Path(sysconfig.get_path("scripts")) / "lint-imports"
AGAINST_THE_RULES = {
    "storage/errors.py": ["tasks.batches", "prefect", "torch"],
    "tasks/batches.py": ["flows.settings", "sglang.srt", "prefect"],
    "tasks/engine/layers.py": ["storage.errors"],
    "flows/settings.py": ["sglang"],
}


def test_an_import_against_the_rules_is_found(tmp_path):
    for package in ("flows", "tasks", "storage"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("data", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for module, names in AGAINST_THE_RULES.items():
        (tmp_path / module).write_text("".join(f"import {name}\n" for name in names))

    linted = subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert linted.returncode == 1
    for module, names in AGAINST_THE_RULES.items():
        for name in names:
            assert f"{module.removesuffix('.py').replace('/', '.')} -> {name.split('.')[0]}" in linted.stdout


@pytest.mark.parametrize("module", ["flows.cli", "tasks.encoder"])
def test_what_starts_often_imports_nothing_that_takes_seconds(module):
    slow = {"matplotlib", "prefect", "sglang", "torch", "transformers"}
    code = f"import sys, {module}; print({slow} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_no_import_goes_round_not_even_within_functions():
    graph = grimp.build_graph("flows", "tasks", "storage", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}

    assert len(list(TopologicalSorter(imports).static_order())) == len(graph.modules)  # else it raises CycleError
