"""The canary: what an engine must show at its start before anything that it computes is kept.

A wrong state looks like a right one: same shape, same size, finite. So each start compares values: packed against
alone, against transformers where the model is small enough to load twice, and what the LM head reads from `final`
against the tokens that the engine itself would generate.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from tasks.engine.base import Engine, EngineOptions, ReadableEngine
from tasks.engine.errors import CanaryError
from tasks.engine.layers import LayerId
from tasks.engine.models import ModelInfo, weight_files

# Lengths of the packed batch: one token, short ones, one over an attention block of 64.
LENGTHS = (1, 7, 33, 70)
# Each prefix of a sequence of this many tokens is asked for the engine's own next token.
READ_OUT_TOKENS = 16
# In a mixture of experts a rounding sends single tokens to another expert, and Marlin's kernels for experts round
# otherwise each time (1 of 16 seen in a random one, on an H200); a state that is not the LM head's is wrong nearly
# everywhere.
TURNED_OVER = READ_OUT_TOKENS // 4
# Room that the canary needs in one batch.
CANARY_TOKENS = max(sum(LENGTHS), READ_OUT_TOKENS * (READ_OUT_TOKENS + 1) // 2)
# Largest relative error of a right state. fp32 packed against alone: 8e-7 seen, against transformers 1.4e-6 (MLA).
# bf16 against transformers: 6e-2 seen in 32 layers of random weights, 0.2 in a random MoE, whose router flips on a
# rounding. A state of another sequence or layer errs by about 1 where weights are random.
LIMITS = {"float32": 1e-4, "float16": 0.3, "bfloat16": 0.3}
# FP8 rounds what enters each layer, too: two right forwards differ by 0.33 in a random MoE with MLA of 12 and of 24
# blocks, 0.13 in 32 random dense ones, 0.06 in SmolLM2 (transformers with such rounding, in float32 and in bf16).
ROUNDED_LIMIT = 0.6
# What rounding to the output dtype adds: half a unit in the last place, doubled.
ROUNDING = {"float32": 0.0, "float16": 1e-3, "bfloat16": 8e-3}
# Trained models have neighbouring layers that differ by less than that, so a state must also be closer to its own layer
# of the reference than to the layers beside it, by this factor. 0.76 seen for `final` in bf16 in a random MoE.
NEIGHBOUR_RATIO = 0.9
# What FP8 adds would hide a neighbour that is near; where the ids are shifted, that one is still the closer of the two.
ROUNDED_NEIGHBOUR_RATIO = 1.0
# Larger checkpoints are not loaded a second time for the comparison with transformers.
REFERENCE_BYTES = 4 << 30

Measure = Callable[[torch.Tensor, torch.Tensor], float]


def check_engine(engine: ReadableEngine, model: ModelInfo, reference: Engine | None) -> None:
    """Run the canary.

    Args:
        engine: the engine as it will be used.
        model: its model folder.
        reference: transformers with all layers of the same model (`reference_layers`), or None.

    Raises:
        CanaryError: with the layer, the size of the difference, the limit and the likely cause.
    """
    sequences = make_sequences(model.vocab_size)
    packed = torch.split(engine.forward(sequences), [len(ids) for ids in sequences])
    _check_values(engine.options.layers, torch.cat(packed))
    _check_alone(engine, sequences, packed)
    if reference is not None:
        measure = median_token_error if model.has_experts else relative_error
        _check_reference(engine, packed[-1], reference.forward([sequences[-1]]), reference.options.layers, measure)
    if "final" in engine.options.layers:
        _check_read_out(engine, sequences[-1][:READ_OUT_TOKENS], TURNED_OVER if model.has_experts else 0)


def fits_twice(model: ModelInfo) -> bool:
    """Say whether transformers can be loaded beside the engine: the checkpoint is small enough, and not quantized.

    Of quantized checkpoints transformers reads some wrong, and some not at all: docs/quantization.md.
    """
    size = sum(file.stat().st_size for file in weight_files(model.path))
    return model.quantization is None and size <= REFERENCE_BYTES


def reference_layers(model: ModelInfo) -> tuple[LayerId, ...]:
    """Return all layers, so that a state can be compared with its neighbours."""
    return (*range(model.num_layers + 1), "final")


def make_sequences(vocab_size: int) -> list[npt.NDArray[np.int32]]:
    """Return the canary's token ids, the same every time: int32[n] for n in `LENGTHS`."""
    random = np.random.default_rng(0)
    return [random.integers(0, vocab_size, length).astype(np.int32) for length in LENGTHS]


def _check_values(layers: Sequence[LayerId], states: torch.Tensor) -> None:
    for slot, layer in enumerate(layers):
        rows = states[:, slot].float()
        if not bool(rows.isfinite().all()):
            raise CanaryError(f"canary: layer {layer} has NaN or Inf; check the weights, or try --dtype bfloat16")
        if bool((rows == rows[0]).all()):
            raise CanaryError(f"canary: layer {layer} is the same for every token; the weights were not loaded")


def _check_alone(engine: Engine, sequences: Sequence[npt.NDArray[np.int32]], packed: Sequence[torch.Tensor]) -> None:
    for ids, states in zip(sequences, packed, strict=True):
        difference = worst_difference(engine.options, states, engine.forward([ids]))
        if difference is not None:
            raise CanaryError(
                f"canary: {len(ids)} tokens in a packed batch differ from the same tokens alone: {difference}; "
                f"{_cause(engine.options)}"
            )


def _cause(options: EngineOptions) -> str:
    if options.deterministic:
        return "some kernel of this model depends on the batch; run it without deterministic"
    return "sequences of a batch see each other, most likely by the attention backend"


def worst_difference(options: EngineOptions, ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    """Say which layer of two results for the same tokens differs most, if it does beyond rounding.

    Args:
        options: give layers and dtypes, and so the limit.
        ours: hidden_states: [num_tokens, num_captured, hidden_size].
        theirs: the same from elsewhere.
    """
    return describe_difference(options, layer_errors(ours, theirs).tolist())


def layer_errors(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """Return the relative error of each layer, float64[num_captured], on the device and without waiting for it."""
    return torch.stack([_relative_error(ours[:, slot], theirs[:, slot]) for slot in range(ours.shape[1])])


def describe_difference(options: EngineOptions, errors: Sequence[float]) -> str | None:
    """Say which of these errors, one a layer, is the largest, if it is beyond rounding.

    Of a deterministic engine, whose results must not depend on the batch, any difference counts.
    """
    limit = 0.0 if options.deterministic else _limit(options)
    worst = max(range(len(errors)), key=errors.__getitem__)
    if errors[worst] <= limit:
        return None
    return f"layer {options.layers[worst]} by {errors[worst]:.1e}, the limit is {limit:.0e}"


def _check_reference(
    engine: Engine, states: torch.Tensor, theirs: torch.Tensor, known: Sequence[LayerId], measure: Measure
) -> None:
    limit = _limit(engine.options)
    ratio = ROUNDED_NEIGHBOUR_RATIO if engine.options.rounds_inputs else NEIGHBOUR_RATIO
    for slot, layer in enumerate(engine.options.layers):
        place = known.index(layer)
        errors = {near: measure(states[:, slot], theirs[:, known.index(near)]) for near in known}
        error = errors[layer]
        beside = [known[near] for near in (place - 1, place + 1) if 0 <= near < len(known)]
        closest = min(beside, key=errors.__getitem__)
        if error > limit:
            cause = f"it is closest to layer {min(errors, key=errors.__getitem__)} there"
        elif error > ratio * errors[closest]:
            cause = f"layer {closest} there is nearly as close ({errors[closest]:.1e}): the layer ids are shifted"
        else:
            continue
        raise CanaryError(
            f"canary: layer {layer} differs from transformers by {error:.1e}, the limit is {limit:.0e}; {cause}; "
            "correct the model's row in tasks/engine/architectures.py"
        )


def _check_read_out(engine: ReadableEngine, ids: npt.NDArray[np.int32], allowed: int) -> None:
    """Compare what the LM head reads from `final` with the engine's own tokens; `allowed` positions may differ."""
    own = engine.next_tokens([ids[: end + 1] for end in range(len(ids))])
    final = engine.forward([ids])[:, engine.options.layers.index("final")]
    logits = engine.read_out(final)
    best, chosen = logits.max(-1).values, logits.gather(1, own[:, None].to(logits.device))[:, 0]
    # Rounding may swap two tokens that are nearly even; another token than these is another state.
    slack = _limit(engine.options) * logits.std(-1) + 2e-2 * best.abs()
    wrong = torch.nonzero(best - chosen > slack)
    if len(wrong) > allowed:
        position = int(wrong[0])
        raise CanaryError(
            f"canary: at {len(wrong)} of {len(ids)} positions, first at {position}, the LM head reads token "
            f"{int(logits[position].argmax())} from `final` where the engine itself generates {int(own[position])}; "
            "`final` is not the state that the LM head sees; correct the model's row in tasks/engine/architectures.py"
        )


def _limit(options: EngineOptions) -> float:
    limit = ROUNDED_LIMIT if options.rounds_inputs else LIMITS[options.compute_dtype]
    return limit + ROUNDING[options.output_dtype]


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return ||ours - theirs|| / ||theirs||. Absolute errors say nothing: SmolLM2's states reach 24,000."""
    return float(_relative_error(ours, theirs))


def _relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    ours, theirs = ours.double(), theirs.double().to(ours.device)
    error: torch.Tensor = (ours - theirs).norm() / theirs.norm().clamp_min(1e-30)
    return error


def median_token_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Return the relative error of the median token: of a mixture of experts, where a rounding sends some elsewhere."""
    ours, theirs = ours.double(), theirs.double().to(ours.device)
    return float(((ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp_min(1e-30)).median())


def reference_options(engine: Engine, model: ModelInfo) -> EngineOptions:
    """Return the options of the reference for an engine: all layers, unrounded."""
    compute_dtype = engine.options.compute_dtype
    return replace(engine.options, layers=reference_layers(model), output_dtype=compute_dtype)
