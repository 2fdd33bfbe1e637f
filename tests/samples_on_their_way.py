"""Samples with random states, as a forward hands them to the write path, and the spec they are of."""

import numpy as np
import numpy.typing as npt
import torch

from storage.specs import StateSpec

SPEC = StateSpec(
    model_fingerprint="f" * 64,
    architecture="LlamaForCausalLM",
    num_layers=8,
    hidden_size=32,
    layers=(4, "final"),
    compute_dtype="float32",
    storage_dtype="bfloat16",
    quantization=None,
    engine="test",
    engine_version="1",
)
NUM_TOKENS = 16


def make_sample(seed: int, num_tokens: int = NUM_TOKENS) -> tuple[npt.NDArray[np.int32], torch.Tensor]:
    """Return input_ids: int32[num_tokens], and states: bfloat16[num_tokens, 2, 32]."""
    ids = np.random.default_rng(seed).integers(0, 1000, num_tokens).astype(np.int32)
    states = torch.randn(num_tokens, 2, 32, generator=torch.Generator().manual_seed(seed))
    return ids, states.to(torch.bfloat16)
