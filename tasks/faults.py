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


def flag_rows(hidden_states: torch.Tensor, layers: Sequence[LayerId]) -> torch.Tensor:
    """Look at each row, on the device the states are on and without waiting for it.

    Args:
        hidden_states: [num_tokens, num_captured, hidden_size].
        layers: ids of the captured layers. A zero row of layer 0 is no fault: a padding token's embedding may be zero.

    Returns:
        bool[2, num_tokens]: whether all values are finite, and whether no layer is all zero.
    """
    finite = hidden_states.isfinite().flatten(1).all(1)
    nonzero = hidden_states[:, 1 if layers[0] == 0 else 0 :].any(-1).all(-1)
    return torch.stack((finite, nonzero))


def describe_faults(flags: torch.Tensor, lengths: Sequence[int]) -> list[Fault | None]:
    """Say what is wrong with each sample of a packed batch: one entry a sample, its first fault or None.

    Args:
        flags: those of `flag_rows`, on the CPU.
        lengths: tokens of each sample, in order.
    """
    if bool(flags.all()):
        return [None] * len(lengths)
    return [_describe(*part) for part in torch.split(flags, list(lengths), dim=1)]


def find_faults(hidden_states: torch.Tensor, lengths: Sequence[int], layers: Sequence[LayerId]) -> list[Fault | None]:
    """Check the samples of one packed batch at once: `flag_rows` and `describe_faults`."""
    return describe_faults(flag_rows(hidden_states, layers).cpu(), lengths)


def _describe(finite: torch.Tensor, nonzero: torch.Tensor) -> Fault | None:
    if not bool(finite.all()):
        return Fault("non_finite", f"NaN or Inf in {int((~finite).sum())} of {len(finite)} rows")
    if not bool(nonzero.all()):
        return Fault("all_zero", f"a layer is all zero in {int((~nonzero).sum())} of {len(nonzero)} rows")
    return None
