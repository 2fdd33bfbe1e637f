"""A share of samples, computed again alone to be compared with what they are in their batch."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from tasks.engine.base import Engine
from tasks.engine.canary import layer_errors


def recheck(
    engine: Engine,
    sequences: Sequence[npt.NDArray[np.int32]],
    states: torch.Tensor,
    hashes: Sequence[str],
    share: float,
) -> dict[int, torch.Tensor]:
    """Launch forwards of some samples of a batch alone, chosen by their hashes, so always the same ones.

    Args:
        engine: what ran the batch.
        sequences: input_ids of its samples: int32[num_tokens_i] each.
        states: their states: [sum(num_tokens_i), num_captured, hidden_size].
        hashes: their sample hashes, which are random.
        share: of all samples, 0 to 1.

    Returns:
        Place in the batch -> relative error of each layer: float64[num_captured], on the device and perhaps not yet
        computed.
    """
    if len(sequences) == 1:
        return {}
    rows = torch.split(states, [len(ids) for ids in sequences])
    chosen = (place for place, name in enumerate(hashes) if int(name[:8], 16) < share * 2**32)
    return {place: layer_errors(rows[place], engine.forward([sequences[place]])) for place in chosen}
