"""Random models of a few billion parameters on a GPU: the canary, and a full batch; `-s` shows what was measured."""

import gc
import shutil
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from large_models import LARGE_MODELS, make_large_model
from token_errors import packing_errors

from tasks.engine.base import Engine, EngineOptions
from tasks.engine.canary import check_engine
from tasks.engine.layers import DEFAULT_LAYERS, resolve_layers
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.faults import find_faults

pytestmark = pytest.mark.gpu

BATCH_TOKENS = 16_384
LENGTHS = [4096, 1, 2000, 64, 7, 3000, 1024, 33, 5000, 500]


def random_ids(vocab_size: int, num_tokens: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(0, vocab_size, num_tokens).astype(np.int32)


@pytest.mark.parametrize("name", LARGE_MODELS)
def test_the_canary_passes_and_a_full_batch_is_sound(tmp_path: Path, name: str) -> None:
    started = time.monotonic()
    try:
        model = read_model(make_large_model(LARGE_MODELS[name], tmp_path))
        made = time.monotonic()
        options = EngineOptions(
            model=model.path,
            layers=resolve_layers(DEFAULT_LAYERS, model.num_layers),
            compute_dtype="bfloat16",
            output_dtype="bfloat16",
            device="cuda",
            max_batch_tokens=BATCH_TOKENS,
            rounds_inputs=model.rounds_inputs,
        )
        engine = load_engine(options)
        try:
            loaded = time.monotonic()
            check_engine(engine, model, None)
            checked = time.monotonic()
            error = measure_packing(engine, model.vocab_size)
            speed = measure_speed(engine, model.vocab_size)
        finally:
            engine.close()
            del engine
    finally:
        shutil.rmtree(tmp_path)
        gc.collect()
        torch.cuda.empty_cache()
    print(
        f"{name}: made in {made - started:.1f} s, loaded in {loaded - made:.1f} s, canary (compiles kernels) "
        f"{checked - loaded:.1f} s; {speed:,.0f} tokens/s, packed against alone {error:.1e}"
    )


def measure_packing(engine: Engine, vocab_size: int) -> float:
    """Return how far a ragged batch is from its sequences alone, in the worst layer, by the median token."""
    sequences = [random_ids(vocab_size, length, seed) for seed, length in enumerate(LENGTHS)]
    assert find_faults(engine.forward(sequences), LENGTHS, engine.options.layers) == [None] * len(LENGTHS)
    worst = max(packing_errors(engine, sequences))
    # As much as two right forwards of a random MoE may differ by; see the limits of the canary.
    assert worst <= (0.6 if engine.options.rounds_inputs else 0.3)
    return worst


def measure_speed(engine: Engine, vocab_size: int) -> float:
    """Return tokens a second of one full batch of 16 sequences, the second time."""
    sequences = [random_ids(vocab_size, BATCH_TOKENS // 16, seed) for seed in range(16)]
    for _ in range(2):
        torch.cuda.synchronize()
        started = time.monotonic()
        engine.forward(sequences)
        torch.cuda.synchronize()
        seconds = time.monotonic() - started
    return BATCH_TOKENS / seconds
