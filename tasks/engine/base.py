"""The engine protocol and its value types; knows torch, nothing of Prefect or the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from tasks.engine.layers import LayerId

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine is started with.

    Attributes:
        model: Hugging Face model folder.
        layers: canonical layer ids to capture, ascending, `final` last.
        compute_dtype: dtype of weights and activations, a key of `DTYPES`.
        output_dtype: dtype in which states are returned; rounding happens on the device.
        device: `cpu` or `cuda` (the process sees only the GPUs of its group).
        max_batch_tokens: most tokens in one forward; sizes the KV pool.
        max_sequences: most sequences in one forward.
        tp_size: ranks that share the model, each on a GPU of its own, or all on the CPU.
        ep_size: parts into which the experts are dealt among the ranks; divides `tp_size`.
        quantization: `fp8` quantizes a checkpoint as it is loaded; None leaves it as it is.
        deterministic: a sequence has the same bits in any batch.
        rounds_inputs: what enters a linear layer is rounded, to FP8 or the like: states have that noise.
    """

    model: Path
    layers: tuple[LayerId, ...]
    compute_dtype: str
    output_dtype: str
    device: Literal["cpu", "cuda"]
    max_batch_tokens: int
    max_sequences: int = 64
    tp_size: int = 1
    ep_size: int = 1
    quantization: str | None = None
    deterministic: bool = False
    rounds_inputs: bool = False


class Engine(Protocol):
    """A loaded model that turns ragged sequences into hidden states."""

    options: EngineOptions

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Run one packed forward.

        Args:
            sequences: input_ids: int32[num_tokens_i] each; together at most `max_batch_tokens` tokens.

        Returns:
            hidden_states: output_dtype[sum(num_tokens_i), num_captured, hidden_size] on the engine's device, the
            sequences one after the other without padding, layers in the order of `options.layers`.

        Raises:
            EngineOutOfMemoryError: the device has no room for this batch.
            EngineStateError: the forward gave something other than one row a token.
        """
        ...

    def close(self) -> None:
        """Free the model and its pools."""
        ...


class ReadableEngine(Engine, Protocol):
    """An engine that can also be asked what it would generate."""

    def next_tokens(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Return the greedy next token after each sequence, by the engine's own logits: int64[num_sequences]."""
        ...

    def read_out(self, final: torch.Tensor) -> torch.Tensor:
        """Return the LM head's logits over final states: float32[num_tokens, vocab_size]."""
        ...
