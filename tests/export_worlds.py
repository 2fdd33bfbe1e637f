"""Stores for the tests of exports: random states of all layers that a trainer may ask for, under rows with copies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from storage import StateSpec, TokensSpec, init_store
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.paths import StorePath
from storage.store import add_spec
from storage.tokens import TokensWriter
from tasks.trainer_files.plan import ExportPlan
from tasks.trainer_files.requests import ExportRequest, make_export_plan

SPEC = StateSpec(
    model_fingerprint="f" * 64,
    architecture="LlamaForCausalLM",
    num_layers=8,
    hidden_size=48,
    layers=(2, 4, 5, 8, "final"),
    compute_dtype="bfloat16",
    storage_dtype="bfloat16",
    quantization=None,
    engine="test",
    engine_version="1",
)
LENGTHS = (40, 300, 7, 256, 90)
# Row i of the data is sample ORDER[i]: two rows are copies, one of them with another loss mask.
ORDER = (3, 0, 4, 1, 3, 2, 0)
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


@dataclass(frozen=True)
class World:
    """A store and a tokens artifact; `rows` has ids, mask and the states given of each row."""

    store: StorePath
    spec: StateSpec
    tokens: TokensSpec
    rows: list[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], npt.NDArray[Any]]]

    def plan(self, form: str, folder: Path, **changes: Any) -> ExportPlan:
        return make_export_plan(ExportRequest(self.store, form, folder, **changes))


def make_world(path: StorePath, order: Sequence[int] = ORDER, lacking: int | None = None, **changes: Any) -> World:
    """Make a store, partly packed; it lacks the states of one sample if that is asked for."""
    spec = replace(SPEC, **changes)
    init_store(path)
    digest = add_spec(path, spec)
    samples = [_make_sample(length, spec) for length in LENGTHS]
    writer = ObjectWriter(path, spec)
    for number, sample in enumerate(samples):
        if number != lacking:
            writer.write(*sample)
        if number == 2:
            compact(path, digest)
    rows = []
    tokens = TokensSpec(("data", *map(str, order)), "tokenizer", "template")
    with TokensWriter(path, tokens) as artifact:
        for number, which in enumerate(order):
            input_ids, states = samples[which]
            loss_mask = (np.arange(len(input_ids)) % (number + 2) > 0).astype(np.uint8)
            artifact.append(input_ids, loss_mask, 10 * number)
            rows.append((input_ids, loss_mask, states))
        artifact.commit()
    return World(path, spec, tokens, rows)


def _make_sample(num_tokens: int, spec: StateSpec) -> tuple[npt.NDArray[np.int32], npt.NDArray[Any]]:
    rng = np.random.default_rng(num_tokens)
    states = rng.normal(size=(num_tokens, spec.num_captured, spec.hidden_size)).astype(np.float32)
    return rng.integers(0, 50_000, num_tokens, dtype=np.int32), states.astype(DTYPES[spec.dtype.states])
