"""Each dtype of the forward, on a CPU: as close to float32 as transformers is in that dtype."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.engine.base import DTYPES, EngineOptions
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.engine.reference_engine import ReferenceEngine

FACTOR = 1.1
# Half a unit in the last place; an error of this size is that of rounding, and none of the dtype before it.
EPSILON = {"bfloat16": 4e-3, "float16": 5e-4}


def token_error(states: torch.Tensor, truth: torch.Tensor) -> list[float]:
    """The median relative error of a token, by layer: in a random MoE a rounding sends a few to another expert."""
    errors = (states.double() - truth.double()).norm(dim=2) / truth.double().norm(dim=2)
    return errors.median(0).values.tolist()


@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
@pytest.mark.parametrize("dtype", EPSILON)
def test_every_layer_errs_as_transformers_does(tiny_model: Callable[[str], Path], name: str, dtype: str) -> None:
    model = tiny_model(name)
    layers = (*range(read_model(model).num_layers + 1), "final")
    options = EngineOptions(
        model=model, layers=layers, compute_dtype=dtype, output_dtype=dtype, device="cpu", max_batch_tokens=256
    )
    ids = np.random.default_rng(0).integers(5, 30_000, 96).astype(np.int32)
    engine = load_engine(options)
    ours, theirs = engine.forward([ids]), ReferenceEngine(options).forward([ids])
    engine.close()
    exact = replace(options, compute_dtype="float32", output_dtype="float32")
    truth = ReferenceEngine(exact).forward([ids])
    assert ours.dtype == DTYPES[dtype]
    assert torch.equal(ours[:, 0], theirs[:, 0])
    errors = token_error(ours, truth), token_error(theirs, truth)
    for layer, mine, reference in zip(layers, *errors, strict=True):
        assert mine <= FACTOR * reference, f"layer {layer}"
        assert layer == 0 or mine > EPSILON[dtype] / 10, f"layer {layer} was computed in a wider dtype"
