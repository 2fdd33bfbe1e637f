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
    # At position 0 nothing is rotated; how many tokens share its experts decides the last bits.
    assert (ours[0] - theirs[0]).norm() / theirs[0].norm() < 1e-6
    assert (ours - theirs).norm() / theirs.norm() > 0.1


def test_positions_are_counted_from_where_the_served_model_counts_them(tiny_model: Callable[[str], Path]) -> None:
    """SGLang's wrapper of Gemma-3 starts at 1; transformers, left to itself, at 0, which rounds otherwise."""
    model = tiny_model("gemma3-wrapped")
    ids = np.arange(5, 105)
    ours = ReferenceEngine(EngineOptions(model, (8,), "float32", "float32", "cpu", 4096)).forward([ids])[:, 0]
    decoder = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, local_files_only=True).get_decoder()
    before_norm: list[torch.Tensor] = []
    decoder.norm.register_forward_pre_hook(lambda _module, args: before_norm.append(args[0][0]))
    with torch.no_grad():
        for positions in (None, torch.arange(100), torch.arange(1, 101)):
            decoder(torch.from_numpy(ids)[None], position_ids=None if positions is None else positions[None])
    by_default, from_0, from_1 = before_norm
    assert torch.equal(by_default, from_0)
    assert not torch.equal(from_0, from_1)
    assert torch.equal(ours, from_1)
