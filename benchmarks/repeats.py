"""Whether the same tokens give the same bits: again, alone, in another order, in another process, on other GPUs."""

from collections.abc import Sequence
from typing import Any

import torch
from inputs import Ids

from tasks.engine.base import Engine
from tasks.engine.canary import relative_error

# Shorter and longer than an attention block, and one length twice.
LENGTHS = (5, 300, 64, 300, 1)


def repeat(engine: Engine, sequences: Sequence[Ids]) -> tuple[torch.Tensor, dict[str, Any]]:
    """Run the same sequences packed, packed again, each alone, and packed the other way round.

    Returns:
        hidden_states: of the first run, on the CPU; and how each other run differs from it.
    """
    first = engine.forward(sequences).cpu()
    again = engine.forward(sequences).cpu()
    alone = torch.cat([engine.forward([ids]).cpu() for ids in sequences])
    lengths = [len(ids) for ids in reversed(sequences)]
    turned = torch.split(engine.forward(list(reversed(sequences))).cpu(), lengths)
    reordered = torch.cat(list(reversed(turned)))
    return first, {
        "again": differ(again, first),
        "alone": differ(alone, first),
        "reordered": differ(reordered, first),
    }


def differ(states: torch.Tensor, first: torch.Tensor) -> dict[str, Any]:
    """Say how far two results for the same tokens are from the same bits.

    Returns:
        equal: whether all bits are the same.
        layer: the first slot that differs, or None.
        relative_error: the largest of any layer.
    """
    slots = [slot for slot in range(first.shape[1]) if not torch.equal(states[:, slot], first[:, slot])]
    errors = [relative_error(states[:, slot], first[:, slot]) for slot in slots]
    return {"equal": not slots, "first_slot": slots[0] if slots else None, "relative_error": max(errors, default=0.0)}
