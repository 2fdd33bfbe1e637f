"""The trainers' own packages, each in a virtual environment of its own; what they share with us comes from ours.

Each has its wheel and those few packages that its readers need and we do not have, or have in a version that it does
not take. torch and transformers are ours: a path file leads there.
"""

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import torch

from tasks.smollm2 import build_once

READERS = Path(__file__).parent / "consumer_readers"
REQUIREMENTS = {
    "specforge": ("specforge==0.2.0", "yunchang==0.6.4"),
    "speculators": ("speculators==0.9.0", "hs-connectors==0.9.0", "datasets==5.1.0"),
    "modelopt": ("nvidia-modelopt==0.47.0", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3", "pulp==3.3.0"),
}


def read_by(consumer: str, cache_dir: Path, out: Path, model: Path, *folders: Path) -> list[dict[str, Any]]:
    """Return what a consumer reads of folders, all in one process: its imports take longer than the rest."""
    python = ensure_consumer(consumer, cache_dir) / "bin" / "python"
    command = [str(python), str(READERS / f"read_{consumer}.py"), str(out), str(model), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: list[dict[str, Any]] = torch.load(out, weights_only=True)
    return found


def ensure_consumer(name: str, cache_dir: Path) -> Path:
    """Return the environment of a consumer, made when `cache_dir` lacks it."""
    ours = sysconfig.get_path("purelib")
    key = repr([REQUIREMENTS[name], sys.version_info[:3], ours])
    digest = hashlib.sha256(key.encode()).hexdigest()[:8]
    return build_once(cache_dir / f"{name}-{digest}", lambda staging: _make(name, staging, ours))


def _make(name: str, folder: Path, ours: str) -> None:
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(f"{ours}\n")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*install, "--target", packages, *REQUIREMENTS[name]], check=True)
