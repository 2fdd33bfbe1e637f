import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = Path(sysconfig.get_path("scripts")) / "lint-imports"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("storage/errors.py", "import tasks.batches"),
        ("storage/errors.py", "import prefect"),
        ("storage/errors.py", "import torch"),
        ("tasks/batches.py", "import flows.settings"),
        ("tasks/batches.py", "import sglang.srt"),
        ("tasks/batches.py", "import prefect"),
        ("tasks/engine/layers.py", "import storage.errors"),
        ("flows/settings.py", "import sglang"),
    ],
)
def test_an_import_against_the_rules_is_found(module, line, tmp_path):
    for package in ("flows", "tasks", "storage"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("data", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / module).write_text(f"{line}\n")

    linted = subprocess.run([LINT_IMPORTS, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert linted.returncode == 1
    assert f"{module.removesuffix('.py').replace('/', '.')} -> {line.split()[1].split('.')[0]}" in linted.stdout
