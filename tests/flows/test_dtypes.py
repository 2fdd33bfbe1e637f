"""A dtype and a quantization, from the settings to the states."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jobs import chat, write_lines

from flows import Settings, extract_hidden_states
from flows.job import prepare_job
from tasks.engine.base import EngineOptions
from tasks.engine.precision import Precision
from tasks.engine.reference_engine import ReferenceEngine
from tasks.planning import Plan

LINES = ['{"messages": []}', *(str(chat(f"Count to {n}.", "One, two, three.")).replace("'", '"') for n in (3, 4))]


def settings_for(model: Path, folder: Path, **changes: str) -> Settings:
    data = write_lines(folder / "chats.jsonl", LINES)
    return Settings(model=model, data=data, store=folder / "store", devices="cpu", **changes)


def test_states_are_those_of_the_dtype_asked_for(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """They err as a forward in float16 does, 1.4e-3: rounding for storage alone is 2e-4, and bfloat16 errs by 1e-2."""
    result = extract_hidden_states(
        settings_for(tiny_model("llama"), tmp_path, dtype="float16", storage_dtype="float16", layers="4,final")
    )
    assert result.report.spec["compute_dtype"] == "float16"
    exact = ReferenceEngine(
        EngineOptions(
            model=tiny_model("llama"),
            layers=(4, "final"),
            compute_dtype="float32",
            output_dtype="float32",
            device="cpu",
            max_batch_tokens=512,
        )
    )
    assert len(result.store) == 2
    for index, name in enumerate(result.tokens.sample_hashes):
        truth = exact.forward([result.tokens.input_ids(index)]).numpy()
        found = result.store[name].hidden_states().astype(np.float32)
        assert 5e-4 < np.linalg.norm(found - truth) / np.linalg.norm(truth) < 3e-3


def test_an_engine_process_is_told_the_dtype_and_how_to_quantize(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """No GPU is needed to tell it."""
    job = replace(
        prepare_job(settings_for(tiny_model("llama"), tmp_path, dtype="float16")),
        precision=Precision("float16", "online fp8", "fp8"),
    )
    plan = Plan(
        rows=1,
        duplicates=0,
        stored=np.array([], int),
        missing=np.array([0]),
        lengths=np.array([9]),
        tokens=9,
        raw_bytes=0,
        stored_bytes=0,
        free_bytes=0,
    )
    start = job.start_message(plan, "t" * 64)
    assert (start.compute_dtype, start.quantization) == ("float16", "fp8")


@pytest.mark.parametrize("dtype", ["auto", "float32", "bfloat16", "float16"])
def test_the_dtype_names_the_states(tiny_model: Callable[[str], Path], tmp_path: Path, dtype: str) -> None:
    job = prepare_job(settings_for(tiny_model("llama"), tmp_path, dtype=dtype))
    expected = "float32" if dtype == "auto" else dtype
    assert (job.precision.compute_dtype, job.spec.compute_dtype, job.spec.quantization) == (expected, expected, None)
    auto = prepare_job(settings_for(tiny_model("llama"), tmp_path))
    assert (job.spec_digest == auto.spec_digest) == (expected == "float32")
