"""transformers as the reference: what it gets wrong by itself is set right."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tasks.engine.base import EngineOptions
from tasks.engine.reference_engine import ReferenceEngine


def test_only_the_rotary_dim_of_minimax_m2_is_rotated(tiny_model: Callable[[str], Path]) -> None:
    """transformers reads another field, which published checkpoints do not have."""
    model = tiny_model("minimax-m2")
    ids = np.arange(5, 22)
    ours = ReferenceEngine(EngineOptions(model, (1,), "float32", "float32", "cpu", 4096)).forward([ids])[:, 0]
    alone = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True)
    with torch.no_grad():
        theirs = alone.model(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states[1][0]
    assert torch.equal(ours[:1], theirs[:1])  # at position 0 nothing is rotated
    assert (ours - theirs).norm() / theirs.norm() > 0.1
