"""transformers as the reference of the models that need a GPU to be compared; the engine's tests have the others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.engine.base import EngineOptions
from tasks.engine.reference_engine import ReferenceEngine


@pytest.mark.parametrize("name", ["qwen2-moe", "qwen3-next", "gpt-oss"])
def test_every_layer_is_finite_and_its_own(tiny_model: Callable[[str], Path], name: str) -> None:
    model = tiny_model(name)
    options = EngineOptions(model, (*range(9), "final"), "float32", "float32", "cpu", 4096)
    states = ReferenceEngine(options).forward([np.arange(5, 70, dtype=np.int32)])
    assert states.shape == (65, 10, 256)
    assert torch.isfinite(states).all()
    for slot in range(9):
        difference = (states[:, slot + 1] - states[:, slot]).norm() / states[:, slot].norm()
        assert difference > 1e-2, f"layer {slot}"
