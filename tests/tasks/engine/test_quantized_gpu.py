"""Quantized checkpoints, loaded by SGLang on a GPU, against transformers with the same numbers unquantized."""

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from fake_quantization import round_inputs, round_to_fp8
from quantized_models import CHANGES, QUANTIZED_MODELS, REFUSED, SCHEMES
from token_errors import median_token_errors, packing_errors

from tasks.engine.base import Engine, EngineOptions
from tasks.engine.canary import check_engine, reference_options
from tasks.engine.errors import ModelLoadError
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.engine.reference_engine import ReferenceEngine

pytestmark = pytest.mark.gpu

# Quantized as they are loaded: the checkpoint, and the same quantized beforehand.
ONLINE = {"llama-online-fp8": "llama-fp8-channel", "qwen3-moe-online-fp8": "qwen3-moe-fp8-channel"}
# Of the error that the format itself makes. Theirs is one draw of it, ours another.
FACTOR = 1.25
# What Marlin adds: it rounds scale times number to the dtype of the activations.
SLACK = 2e-3


@dataclass(frozen=True)
class Case:
    """An engine on a quantized model, transformers on its numbers in float32, and transformers as quantized runs."""

    name: str
    ours: Engine
    exact: ReferenceEngine
    rounded: ReferenceEngine


def make_case(name: str, quantized: Callable[[str], tuple[Path, Path]]) -> Case:
    beforehand = ONLINE.get(name, name)
    folder, twin = quantized(beforehand)
    scheme = QUANTIZED_MODELS[beforehand][1]
    original = folder.parent / "original"
    model, truth = (original, original) if name in ONLINE else (folder, twin)
    info = read_model(model)
    dtype = SCHEMES[scheme].dtype
    options = EngineOptions(
        model=model,
        layers=(*range(info.num_layers + 1), "final"),
        compute_dtype=dtype,
        output_dtype=dtype,
        device="cuda",
        max_batch_tokens=16_384,
        quantization="fp8" if name in ONLINE else None,
        rounds_inputs=scheme.startswith("fp8"),
    )
    ours = load_engine(options)
    exact = ReferenceEngine(replace(options, model=truth, compute_dtype="float32", output_dtype="float32"))
    rounded = ReferenceEngine(replace(options, model=twin))
    if options.rounds_inputs:
        round_inputs(rounded._model, partial(round_to_fp8, group_size=128 if scheme == "fp8-block" else None))
    return Case(name, ours, exact, rounded)


@pytest.fixture(scope="module", params=[*(name for name in QUANTIZED_MODELS if name not in REFUSED), *ONLINE])
def case(request: pytest.FixtureRequest, quantized: Callable[[str], tuple[Path, Path]]) -> Iterator[Case]:
    case = make_case(request.param, quantized)
    yield case
    case.ours.close()
    del case
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("name", REFUSED)
def test_scales_that_sglang_does_not_find_are_noticed(quantized: Callable[[str], tuple[Path, Path]], name: str) -> None:
    folder, _ = quantized(name)
    options = EngineOptions(folder, ("final",), "bfloat16", "bfloat16", "cuda", max_batch_tokens=64)
    with pytest.raises(ModelLoadError, match=r"parameters were not filled .*weight_scale_inv"):
        load_engine(options)


def random_ids(num_tokens: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(5, CHANGES["vocab_size"], num_tokens).astype(np.int32)


def test_every_layer_errs_as_the_format_does(case: Case, record_property: Callable[..., None]) -> None:
    ids = random_ids(700)
    truth = case.exact.forward([ids])
    ours, theirs = (median_token_errors(engine.forward([ids]), truth) for engine in (case.ours, case.rounded))
    for layer, mine, reference in zip(case.ours.options.layers, ours, theirs, strict=True):
        print(f"{case.name} layer {layer}: ours {mine:.2e}, transformers {reference:.2e}")
        record_property(f"{case.name}-{layer}", [mine, reference])
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine <= FACTOR * reference + SLACK
        assert mine >= reference / 2 or not case.ours.options.rounds_inputs, "nothing was rounded to FP8"


def test_the_canary_passes_against_the_numbers_of_the_checkpoint(case: Case) -> None:
    info = read_model(case.ours.options.model)
    options = replace(reference_options(case.ours, info), model=case.exact.options.model)
    check_engine(case.ours, info, ReferenceEngine(options))


def test_packed_errs_from_alone_no_more_than_the_format_does(case: Case) -> None:
    errors = packing_errors(case.ours, [random_ids(n, seed=n) for n in (5, 1500, 1, 64, 700)])
    print(f"{case.name}: packed against alone {max(errors):.2e}")
    ids = random_ids(700, seed=700)
    theirs = median_token_errors(case.rounded.forward([ids]), case.exact.forward([ids]))
    for layer, error, reference in zip(case.ours.options.layers, errors, theirs, strict=True):
        assert error <= 2 * reference + SLACK, f"layer {layer}"


def test_what_is_named_in_the_spec_is_what_sglang_loaded(case: Case) -> None:
    """Marlin where there are two dtypes to choose from; no quantization where none is named."""
    config = case.ours._runner.model.quant_config
    expected = {"compressed-tensors": "compressed_tensors", "gptq": "gptq_marlin", "awq": "awq_marlin"}
    method = "fp8" if case.name in ONLINE else SCHEMES[QUANTIZED_MODELS[case.name][1]].config["quant_method"]
    assert config.get_name() == expected.get(method, method)
