"""Bits that depend on nothing but the sequence, on a CPU: each is computed alone, on one thread.

SGLang's batch-invariant kernels are for GPUs. On a CPU the order in which a matrix product is summed depends on how
many rows it has and on the number of threads. Seen in float32, sequences of 1 to 515 tokens packed against alone: all
differed in a mixture of experts, those of up to 7 tokens in a dense model.
"""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from tasks.engine.base import ReadableEngine


class OneByOneEngine:
    """An engine on a CPU, given one sequence at a time; see `Engine`."""

    def __init__(self, engine: ReadableEngine) -> None:
        self.options = engine.options
        self._engine = engine

    def forward(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Run a forward for each sequence; see `Engine.forward`."""
        with _one_thread():
            return torch.cat([self._engine.forward([ids]) for ids in sequences])

    def next_tokens(self, sequences: Sequence[npt.NDArray[np.int32]]) -> torch.Tensor:
        """Return the greedy next token after each sequence: int64[num_sequences]."""
        with _one_thread():
            return torch.cat([self._engine.next_tokens([ids]) for ids in sequences])

    def read_out(self, final: torch.Tensor) -> torch.Tensor:
        """Return the LM head's logits over final states: float32[num_tokens, vocab_size]."""
        return self._engine.read_out(final)

    def close(self) -> None:
        """Free the model."""
        self._engine.close()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread meanwhile: results must not depend on how many cores an engine was given."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
