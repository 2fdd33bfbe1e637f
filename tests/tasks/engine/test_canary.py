"""The canary passes what is right and names what is wrong; faults are put between a real engine and the canary."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fake_quantization import round_inputs, round_to_fp8

from tasks.engine.base import EngineOptions
from tasks.engine.canary import LENGTHS, READ_OUT_TOKENS, check_engine, fits_twice, reference_options
from tasks.engine.errors import CanaryError
from tasks.engine.loading import load_engine
from tasks.engine.models import ModelInfo, read_model
from tasks.engine.one_by_one import OneByOneEngine
from tasks.engine.reference_engine import ReferenceEngine

LAYERS = (2, 4, 5, "final")
Ids = npt.NDArray[np.int32]


def options_for(model: Path, dtype: str = "float32") -> EngineOptions:
    return EngineOptions(
        model=model, layers=LAYERS, compute_dtype=dtype, output_dtype="bfloat16", device="cpu", max_batch_tokens=512
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "deepseek-v3"])
def test_a_right_engine_passes(tiny_model: Callable[[str], Path], name: str, dtype: str) -> None:
    info = read_model(tiny_model(name))
    engine = load_engine(options_for(info.path, dtype))
    try:
        assert fits_twice(info)
        check_engine(engine, info, ReferenceEngine(reference_options(engine, info)))
    finally:
        engine.close()


def test_the_real_model_passes_without_a_reference_too(smollm2: Path) -> None:
    info = read_model(smollm2)
    engine = load_engine(options_for(smollm2))
    try:
        check_engine(engine, info, None)
    finally:
        engine.close()


class Spoilt:
    """A real engine whose states pass through `spoil(sequences, states)`."""

    def __init__(self, engine: ReferenceEngine, spoil: Callable[[Sequence[Ids], torch.Tensor], torch.Tensor]) -> None:
        self.engine, self.options, self.spoil = engine, engine.options, spoil
        self.read_out, self.next_tokens = engine.read_out, engine.next_tokens

    def forward(self, sequences: Sequence[Ids]) -> torch.Tensor:
        return self.spoil(sequences, self.engine.forward(sequences).clone())


@pytest.fixture(scope="class")
def right(tiny_model: Callable[[str], Path]) -> Iterator[tuple[object, ModelInfo, ReferenceEngine]]:
    info = read_model(tiny_model("llama"))
    engine = load_engine(options_for(info.path))
    yield engine, info, ReferenceEngine(reference_options(engine, info))
    engine.close()


def shift_rows(sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
    return states.roll(1, 0) if len(sequences) > 1 else states


def swap_layers(_sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
    return states[:, [1, 0, 2, 3]]


def one_nan(_sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
    states[-1, 2, 7] = float("nan")
    return states


def constant(_sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(states)


def before_the_norm(_sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
    states[:, 3] = states[:, 2]
    return states


class TestAWrongEngineIsNamed:
    @pytest.mark.parametrize(
        ("spoil", "says"),
        [
            (shift_rows, r"1 tokens in a packed batch differ .* layer \w+ by .* see each other"),
            (swap_layers, r"layer 2 differs from transformers .* closest to layer 4"),
            (one_nan, r"layer 5 has NaN"),
            (constant, r"layer 2 is the same for every token"),
            (before_the_norm, r"layer final differs from transformers .* closest to layer 5"),
        ],
    )
    def test_with_transformers(self, right, spoil, says: str) -> None:
        engine, info, reference = right
        with pytest.raises(CanaryError, match=says):
            check_engine(Spoilt(engine, spoil), info, reference)

    def test_a_last_bit_of_a_deterministic_engine(self, right) -> None:
        """Beyond rounding is an error everywhere; there any bit is, for the canary and for the samples done again."""
        engine, info, _ = right

        def one_bit(sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
            if len(sequences) > 1:
                states[-1, 2, 7] = torch.nextafter(states[-1, 2, 7], torch.tensor(torch.inf, dtype=states.dtype))
            return states

        alone = OneByOneEngine(engine)
        check_engine(Spoilt(alone, one_bit), info, None)
        alone.options = replace(engine.options, deterministic=True)
        with pytest.raises(CanaryError, match=r"70 tokens .* layer 5 by .*, the limit is 0e\+00; some kernel"):
            check_engine(Spoilt(alone, one_bit), info, None)

    def test_a_wrong_final_state_without_transformers(self, right) -> None:
        engine, info, _ = right
        with pytest.raises(CanaryError, match=rf"of {READ_OUT_TOKENS} positions.* the engine itself generates"):
            check_engine(Spoilt(engine, before_the_norm), info, None)

    def test_a_single_token_that_turned_over_counts_where_there_are_no_experts(self, right) -> None:
        engine, info, _ = right

        def turn_over(_sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
            if len(states) == READ_OUT_TOKENS:
                states[0, 3] = -states[0, 3]
            return states

        check_engine(Spoilt(engine, turn_over), replace(info, num_experts=8), None)
        with pytest.raises(CanaryError, match=r"at 1 of 16 positions, first at 0"):
            check_engine(Spoilt(engine, turn_over), info, None)
        with pytest.raises(CanaryError, match=r"at 1[0-6] of 16 positions"):
            check_engine(Spoilt(engine, before_the_norm), replace(info, num_experts=8), None)

    def test_few_tokens_that_were_sent_elsewhere_count_where_there_are_no_experts(self, right) -> None:
        engine, info, reference = right

        def send_elsewhere(sequences: Sequence[Ids], states: torch.Tensor) -> torch.Tensor:
            if len(sequences[-1]) == LENGTHS[-1]:
                states[-20:, 1] = -states[-20:, 1]
            return states

        check_engine(Spoilt(engine, send_elsewhere), replace(info, num_experts=8), reference)
        with pytest.raises(CanaryError, match=r"layer 4 differs from transformers by 9\.\de-01"):
            check_engine(Spoilt(engine, send_elsewhere), info, reference)
        with pytest.raises(CanaryError, match=r"layer 2 differs from transformers .* closest to layer 4"):
            check_engine(Spoilt(engine, swap_layers), replace(info, num_experts=8), reference)

    @pytest.mark.parametrize("rounds_inputs", [False, True])
    def test_a_neighbouring_layer_of_a_trained_model(self, smollm2: Path, *, rounds_inputs: bool) -> None:
        """Where neighbours differ by little, the ids tell, not the size of the difference."""
        info = read_model(smollm2)
        asked = replace(options_for(smollm2, "bfloat16"), layers=(20,), rounds_inputs=rounds_inputs)
        beside = ReferenceEngine(replace(asked, layers=(21,)))
        shifted = SimpleNamespace(options=asked, forward=beside.forward)
        reference = ReferenceEngine(reference_options(beside, info))
        with pytest.raises(CanaryError, match=r"layer 20 differs .* layer 21 there is nearly as close"):
            check_engine(shifted, info, reference)


@pytest.fixture(scope="module")
def rounded(quantized: Callable[[str], tuple[Path, Path]]) -> tuple[EngineOptions, ReferenceEngine]:
    """transformers that rounds what enters each layer, with a random MoE with MLA: the noisiest that there is."""
    _, twin = quantized("deepseek-v3-fp8-block")
    options = replace(options_for(twin, "bfloat16"), layers=(0, 1, 2, 3))
    engine = ReferenceEngine(options)
    round_inputs(engine._model, partial(round_to_fp8, group_size=128))
    return options, engine


class TestInputsRoundedToFP8:
    def check(self, options: EngineOptions, forward: Callable[[Sequence[Ids]], torch.Tensor]) -> None:
        info = read_model(options.model)
        engine = SimpleNamespace(options=options, forward=forward)
        check_engine(engine, info, ReferenceEngine(reference_options(engine, info)))

    def test_pass_where_it_is_said(self, rounded: tuple[EngineOptions, ReferenceEngine]) -> None:
        options, engine = rounded
        self.check(replace(options, rounds_inputs=True), engine.forward)

    @pytest.mark.parametrize("spoil", [shift_rows, swap_layers])
    def test_do_not_hide_a_wrong_engine(self, rounded: tuple[EngineOptions, ReferenceEngine], spoil) -> None:
        options, engine = rounded
        with pytest.raises(CanaryError):
            self.check(replace(options, rounds_inputs=True), lambda ids: spoil(ids, engine.forward(ids).clone()))
