"""transformers as the reference, also of models that are quantized: the truth, and what a right forward loses."""

from functools import partial

import torch
from fake_quantization import Round, round_inputs, round_to_fp8
from models import scheme_of
from variants import Variant

from tasks.engine.base import EngineOptions
from tasks.engine.reference_engine import ReferenceEngine

# What one scale is for: of block FP8 this many neighbours of a token, else the whole token.
BLOCK = 128


def load_reference(options: EngineOptions, variant: Variant, model: str) -> ReferenceEngine:
    """Load what stands beside a variant: transformers in its dtype, with the roundings to FP8 that any engine makes."""
    engine = ReferenceEngine(options)
    transformer: torch.nn.Module = engine._model  # noqa: SLF001 - rounding has no place in the reference itself
    if variant.weights == "online":
        _round_weights(transformer)
        round_inputs(transformer, round_to_fp8)
    if variant.weights == "fp8":
        round_inputs(transformer, _rounding(scheme_of(model)))
    return engine


def _rounding(scheme: str) -> Round:
    return partial(round_to_fp8, group_size=BLOCK) if scheme == "fp8-block" else round_to_fp8


@torch.no_grad()
def _round_weights(transformer: torch.nn.Module) -> None:
    """Round the weights of the blocks and of experts to FP8, with a scale a row."""
    for name, parameter in transformer.named_parameters():
        module = name.removesuffix(".weight")
        if module.endswith(("_proj", "_with_mqa")) and parameter.dim() > 1:
            parameter.copy_(round_to_fp8(parameter))
