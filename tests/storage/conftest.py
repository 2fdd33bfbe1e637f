"""Small specs, samples with known values, stores that hold them, and tiny file systems."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from storage import StateSpec, init_store
from storage.objects import ObjectInfo, ObjectWriter
from storage.store import add_spec

SPEC = StateSpec(
    model_fingerprint="f" * 64,
    architecture="LlamaForCausalLM",
    num_layers=8,
    hidden_size=48,
    layers=(2, 5, "final"),
    compute_dtype="float32",
    storage_dtype="bfloat16",
    quantization=None,
    engine="test",
    engine_version="1",
    numerics={},
)
NUMPY_DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
LENGTHS = (1, 255, 256, 257, 700)


@pytest.fixture
def spec() -> StateSpec:
    return SPEC


def make_sample(num_tokens: int, seed: int, spec: StateSpec = SPEC) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    """Return token ids and states that depend on `num_tokens` and `seed` alone."""
    rng = np.random.default_rng([num_tokens, seed])
    input_ids = rng.integers(0, 50_000, num_tokens, dtype=np.int32)
    states = rng.normal(size=(num_tokens, spec.num_captured, spec.hidden_size)).astype(np.float32)
    return input_ids, states.astype(NUMPY_DTYPES[spec.dtype.states])


@pytest.fixture
def sample_of() -> Callable[..., tuple[npt.NDArray[np.int32], npt.NDArray[Any]]]:
    return make_sample


@dataclass
class Filled:
    """A store, its spec, and what was written into it."""

    path: Path
    spec: StateSpec
    digest: str
    samples: dict[str, tuple[npt.NDArray[np.int32], npt.NDArray[Any]]]

    def write(self, num_tokens: int, seed: int) -> ObjectInfo:
        sample = make_sample(num_tokens, seed, self.spec)
        info = ObjectWriter(self.path, self.spec).write(*sample)
        self.samples[info.sample_hash] = sample
        return info

    def objects(self) -> list[Path]:
        return sorted(self.path.glob(f"objects/{self.digest}/*/*"))

    def packs(self) -> list[Path]:
        return sorted(self.path.glob(f"packs/{self.digest}/*"))


@pytest.fixture
def make_filled(tmp_path: Path) -> Callable[..., Filled]:
    def make(lengths: tuple[int, ...] = LENGTHS, path: Path = tmp_path / "store", **changes: Any) -> Filled:
        spec = replace(SPEC, **changes)
        init_store(path)
        filled = Filled(path, spec, add_spec(path, spec), {})
        for seed, num_tokens in enumerate(lengths):
            filled.write(num_tokens, seed)
        return filled

    return make


@pytest.fixture
def filled(make_filled: Callable[..., Filled]) -> Filled:
    return make_filled()


@pytest.fixture
def format_page() -> str:
    return (Path(__file__).parents[2] / "docs" / "format.md").read_text("utf-8")


@pytest.fixture
def block_of(format_page: str) -> Callable[[str], str]:
    """Return the one fenced block of a language in docs/format.md."""

    def block(language: str) -> str:
        (text,) = re.findall(rf"^```{language}\n(.*?)^```", format_page, re.MULTILINE | re.DOTALL)
        return str(text)

    return block


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Return a function that mounts a file system of its own of a given size."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = []

    def mount(options: str) -> Path:
        if os.geteuid() != 0:
            pytest.skip("mounting a tmpfs needs root")
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


def remount_read_only(folder: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
