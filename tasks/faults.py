"""States that must never be stored: not finite, or zero where a model cannot give zero."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tasks.engine.layers import LayerId


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a sample is set aside; `reason` is a stable key of the accounting."""

    reason: str
    detail: str


def find_faults(hidden_states: torch.Tensor, lengths: list[int], layers: Sequence[LayerId]) -> list[Fault | None]:
    """Check the samples of one packed batch, on the device they are on.

    Args:
        hidden_states: [sum(lengths), num_captured, hidden_size].
        lengths: tokens of each sample, in order.
        layers: ids of the captured layers. A zero row of layer 0 is no fault: a padding token's embedding may be zero.

    Returns:
        One entry a sample: its first fault, or None.
    """
    finite = hidden_states.isfinite().flatten(1).all(1)
    nonzero = hidden_states[:, 1 if layers[0] == 0 else 0 :].any(-1).all(-1)
    if bool((finite & nonzero).all()):
        return [None] * len(lengths)
    return [
        _describe(*flags)
        for flags in zip(torch.split(finite.cpu(), lengths), torch.split(nonzero.cpu(), lengths), strict=True)
    ]


def _describe(finite: torch.Tensor, nonzero: torch.Tensor) -> Fault | None:
    if not bool(finite.all()):
        return Fault("non_finite", f"NaN or Inf in {int((~finite).sum())} of {len(finite)} rows")
    if not bool(nonzero.all()):
        return Fault("all_zero", f"a layer is all zero in {int((~nonzero).sum())} of {len(nonzero)} rows")
    return None
