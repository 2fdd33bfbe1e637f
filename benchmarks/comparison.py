"""How far states are from those of transformers in float32: by layer, and by token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# A token this many times as wrong as the median token of transformers went another way: a router sent it, or one that
# it attends to, to another expert.
APART = 10.0
DRAWS = 1000
# Digits that are kept: the third is noise already.
_DIGITS = 4


@dataclass(frozen=True)
class Errors:
    """Of each token in each layer, float64[num_tokens, num_captured].

    Attributes:
        error: length of the difference to the true state.
        norm: length of the true state.
        angle: 1 - cosine of the angle between the two.
    """

    error: torch.Tensor
    norm: torch.Tensor
    angle: torch.Tensor

    @property
    def relative(self) -> torch.Tensor:
        """Error of each token as a share of its length."""
        return self.error / self.norm


def measure_errors(states: torch.Tensor, truth: torch.Tensor) -> Errors:
    """Compare two results for the same tokens, hidden_states: [num_tokens, num_captured, hidden_size] each."""
    columns = []
    for slot in range(truth.shape[1]):
        mine, true = states[:, slot].to(truth.device).double(), truth[:, slot].double()
        # By the chord, since 1 minus a cosine near 1 is only rounding.
        chord = mine / _lengths(mine)[:, None] - true / _lengths(true)[:, None]
        columns.append(((mine - true).norm(dim=-1), _lengths(true), chord.square().sum(-1) / 2))
    return Errors(*(torch.stack(column, dim=1).cpu() for column in zip(*columns, strict=True)))


def summarize(errors: Errors, theirs: Errors) -> dict[str, list[float]]:
    """Return, layer by layer, what is reported of one side.

    Returns:
        relative_error: ||difference|| / ||truth|| over all tokens at once.
        median_token_error: the same of the median token.
        cosine_distance: 1 - cosine, the mean over tokens.
        apart: share of tokens over `APART` times the median token error of `theirs`.
    """
    relative = errors.error.square().sum(0).sqrt() / errors.norm.square().sum(0).sqrt()
    median = errors.relative.median(0).values
    apart = (errors.relative > APART * theirs.relative.median(0).values).double().mean(0)
    return {
        "relative_error": _short(relative),
        "median_token_error": _short(median),
        "cosine_distance": _short(errors.angle.mean(0)),
        "apart": _short(apart),
    }


def compare(ours: Errors, theirs: Errors, lengths: Sequence[int]) -> dict[str, list[float] | list[list[float]]]:
    """Return ours as a multiple of theirs, layer by layer; 0 where both are 0.

    Returns:
        ratio: of the relative errors over all tokens.
        ratio_low, ratio_high: where 90 of 100 such ratios lie when the sequences are drawn again (bootstrap).
        median_ratio: of the median token errors.
    """
    mine, reference = (_by_sequence(errors.error.square(), lengths) for errors in (ours, theirs))
    draws = torch.randint(len(lengths), (DRAWS, len(lengths)), generator=torch.Generator().manual_seed(0))
    drawn = _ratio(mine[draws].sum(1).sqrt(), reference[draws].sum(1).sqrt())
    low, high = torch.quantile(drawn, torch.tensor([0.05, 0.95], dtype=drawn.dtype), dim=0)
    return {
        "ratio": _short(_ratio(mine.sum(0).sqrt(), reference.sum(0).sqrt())),
        "ratio_low": _short(low),
        "ratio_high": _short(high),
        "median_ratio": _short(_ratio(ours.relative.median(0).values, theirs.relative.median(0).values)),
    }


def _ratio(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return ours / theirs.clamp_min(1e-30)


def _by_sequence(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    return torch.stack([part.sum(0) for part in torch.split(values, list(lengths))])


def _lengths(states: torch.Tensor) -> torch.Tensor:
    lengths: torch.Tensor = states.norm(dim=-1)
    return lengths.clamp_min(1e-30)


def _short(values: torch.Tensor) -> list[float]:
    return [float(f"{value:.{_DIGITS - 1}e}") for value in values.tolist()]
