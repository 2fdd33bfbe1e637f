"""Rounding what enters the linear layers, by transformers' and compressed-tensors' own doing of it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from fake_quantization import round_inputs, round_to_fp8


def states(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(5, 105)[None]
    with torch.no_grad():
        return torch.stack(model(ids, output_hidden_states=True).hidden_states)


def test_it_is_what_compressed_tensors_does(quantized: Callable[[str], tuple[Path, Path]]) -> None:
    """A scale a token. In float32, so that hardly a value is rounded the other way for another order of adding."""
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    folder, twin = quantized("llama-fp8-channel")
    options = {"dtype": torch.float32, "local_files_only": True}
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=CompressedTensorsConfig(run_compressed=False), **options
    )
    ours = AutoModelForCausalLM.from_pretrained(twin, **options)
    exact, expected = states(ours), states(theirs)
    round_inputs(ours, round_to_fp8)
    difference, effect = states(ours) - expected, exact - expected
    assert difference.norm() < 0.2 * effect.norm()


@pytest.mark.parametrize("name", ["qwen3-moe-packed", "kimi-k2-packed-experts"])
def test_experts_without_rounding_are_those_of_transformers(
    quantized: Callable[[str], tuple[Path, Path]], name: str
) -> None:
    from tasks.engine.reference_engine import _from_pretrained

    model = _from_pretrained(quantized(name)[1], torch.float32)
    before = states(model)
    round_inputs(model, lambda values: values)
    assert (states(model) - before).norm() < 1e-5 * before.norm()


def test_a_group_has_a_scale_of_its_own() -> None:
    values = torch.cat([torch.full((1, 128), 1e4), torch.full((1, 128), 1.0)], 1)
    assert torch.equal(round_to_fp8(values, 128), values)
    whole = round_to_fp8(values)
    assert partial(torch.allclose, rtol=0.1)(whole, values)
    assert not torch.equal(whole, values)
