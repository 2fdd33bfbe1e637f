"""Errors of states token by token: in a random mixture of experts a rounding sends a few to another expert."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from tasks.engine.base import Engine

# In a shorter sequence the median token may be one of these few.
SHORTEST = 16


def median_token_errors(states: torch.Tensor, truth: torch.Tensor) -> list[float]:
    """Return the relative error of the median token, by layer; both: [num_tokens, num_captured, hidden_size]."""
    truth = truth.to(states.device).double()
    errors = (states.double() - truth).norm(dim=2) / truth.norm(dim=2)
    return errors.median(0).values.tolist()


def packing_errors(engine: Engine, sequences: Sequence[npt.NDArray[np.int32]]) -> list[float]:
    """Return how far a batch is from its sequences alone, by layer: by the median token of each sequence and of all.

    A sequence that saw another one, or took its rows, errs by about 1 in every token.
    """
    alone = [engine.forward([ids]) for ids in sequences]
    lengths = [len(ids) for ids in sequences]
    packed = engine.forward(sequences)
    errors = [median_token_errors(packed, torch.cat(alone))]
    for rows, own in zip(torch.split(packed, lengths), alone, strict=True):
        if len(own) >= SHORTEST:
            errors.append(median_token_errors(rows, own))
    return [max(of_layer) for of_layer in zip(*errors, strict=True)]
