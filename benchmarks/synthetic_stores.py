"""Stores of random samples that compress as real ones do, written through the store's own writer and compaction."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from storage import StateSpec, init_store
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.specs import LayerId
from storage.store import add_spec

LAYERS: tuple[LayerId, ...] = (2, 16, 29, "final")
# Rows of states that samples are made of; enough that no two inner chunks are alike.
POOL_ROWS = 4096


def make_spec(hidden_size: int, layers: tuple[LayerId, ...] = LAYERS) -> StateSpec:
    """Return the spec of a model of 32 blocks that does not exist."""
    return StateSpec(
        model_fingerprint="0" * 64,
        architecture="LlamaForCausalLM",
        num_layers=32,
        hidden_size=hidden_size,
        layers=layers,
        compute_dtype="bfloat16",
        storage_dtype="bfloat16",
        quantization=None,
        engine="random",
        engine_version="1",
    )


def make_samples(
    spec: StateSpec, lengths: Sequence[int], seed: int = 0
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[Any]]]:
    """Make token ids int32[T] and states, the bits of bfloat16 as uint16[T, K, H], for each length T.

    Normal values with a scale of its own for each channel: Blosc makes 1.42 of them, as of the states of real models.
    """
    rng = np.random.default_rng(seed)
    scales = np.exp(rng.normal(size=spec.hidden_size))
    values = rng.normal(size=(POOL_ROWS, spec.hidden_size)) * scales
    pool = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2")
    for length in lengths:
        starts = rng.integers(0, POOL_ROWS, spec.num_captured)
        rows = (starts + np.arange(length)[:, None]) % POOL_ROWS
        yield rng.integers(0, 50_000, length, dtype=np.int32), pool[rows]


def make_store(path: Path, spec: StateSpec, lengths: Sequence[int], *, packed: bool, seed: int = 0) -> None:
    """Make a store of such samples; what is written is on disk when this returns."""
    init_store(path)
    digest = add_spec(path, spec)
    writer = ObjectWriter(path, spec)
    with _no_sync():
        for input_ids, states in make_samples(spec, lengths, seed):
            writer.write(input_ids, states)
        if packed:
            compact(path, digest)
    os.sync()


@contextmanager
def _no_sync() -> Iterator[None]:
    # One sync at the end is enough for a store that nobody will miss, and a hundred thousand take minutes.
    with patch("os.fsync"):
        yield
