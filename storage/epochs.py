"""The batches of an epoch: which rows, in which order, cut by tokens. Pure, and the same in every process.

The order of an epoch knows nothing of where samples lie, and is local all the same: a pack holds its samples in the
order of their hashes, so hashes that follow each other are one range of rows in each pack. Compaction leaves it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.hashes import Hashes, order_of

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BatchRules:
    """How rows become batches.

    Attributes:
        max_tokens: of a padded batch, its samples times the longest; a longer sample is a batch alone.
        max_padding: share of a padded batch that may be padding.
        seed: of the shuffling.
        run_tokens: samples whose hashes follow each other stay together up to so many tokens: a disk can read ahead.
        window_runs: runs that are mixed with each other, drawn from the whole epoch; the page cache should hold them.

    Raises:
        ValueError: a value is out of range.
    """

    max_tokens: int
    max_padding: float = 0.1
    seed: int = 0
    run_tokens: int = 8192
    window_runs: int = 64

    def __post_init__(self) -> None:
        for name in ("max_tokens", "run_tokens", "window_runs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.max_padding < 1:
            raise ValueError(f"max_padding is {self.max_padding}; it must be a share from 0 to below 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; it must not be negative")


def make_batches(hashes: Hashes, lengths: Rows, rules: BatchRules, epoch: int) -> list[Rows]:
    """Return the batches of an epoch: each row is in exactly one.

    Args:
        hashes: uint8[n, 32], the sample hash of each row; rows of one sample stay close to each other.
        lengths: int64[n], tokens of each row.
        rules: how to shuffle and to cut.
        epoch: counted from 0; each has an order of its own.
    """
    random = np.random.PCG64([rules.seed, epoch])
    batches: list[Rows] = []
    for window in _shuffle(hashes, lengths, rules, random):
        cut = list(_cut(window[np.argsort(-lengths[window], kind="stable")], lengths, rules))
        batches += [cut[i] for i in _permutation(random, len(cut))]
    return batches


def split_batches(batches: list[Rows], lengths: Rows, max_padding: float, ranks: int) -> list[Rows]:
    """Split batches, largest first, until each of `ranks` gets as many or each batch is one row; the order stays."""
    lacking = -len(batches) % ranks
    while lacking and any(len(batch) > 1 for batch in batches):
        largest = sorted((i for i, batch in enumerate(batches) if len(batch) > 1), key=lambda i: -len(batches[i]))
        chosen = set(largest[:lacking])
        batches = [
            part
            for i, batch in enumerate(batches)
            for part in (_halves(batch, lengths, max_padding) if i in chosen else [batch])
        ]
        lacking -= len(chosen)
    return batches


def _permutation(random: np.random.PCG64, size: int) -> Rows:
    # Of numpy's random numbers, the raw ones alone are promised to stay the same in later versions (NEP 19).
    return np.argsort(random.random_raw(size), kind="stable")


def _shuffle(hashes: Hashes, lengths: Rows, rules: BatchRules, random: np.random.PCG64) -> list[Rows]:
    """Return all rows in windows; a window has some runs from anywhere, and their rows in any order."""
    by_hash = order_of(hashes)
    starts = np.cumsum(lengths[by_hash]) - lengths[by_hash]
    numbers, run = np.unique(starts // rules.run_tokens, return_inverse=True)
    place = np.empty(len(numbers), np.int64)
    place[_permutation(random, len(numbers))] = np.arange(len(numbers))
    window = place[run] // rules.window_runs
    order = np.lexsort((random.random_raw(len(run)), window))
    return np.split(by_hash[order], np.flatnonzero(np.diff(window[order])) + 1) if len(order) else []


def _cut(rows: Rows, lengths: Rows, rules: BatchRules) -> Iterator[Rows]:
    """Cut rows in descending order of length into batches."""
    first = tokens = longest = 0
    for at, length in enumerate(lengths[rows].tolist()):
        padded = longest * (at - first + 1)
        if at > first and (padded > rules.max_tokens or padded - tokens - length > rules.max_padding * padded):
            yield rows[first:at]
            first = at
        if at == first:
            tokens, longest = 0, length
        tokens += length
    if len(rows):
        yield rows[first:]


def _halves(batch: Rows, lengths: Rows, max_padding: float) -> tuple[Rows, Rows]:
    """Split a batch in the middle, or after it where the shorter rows would have too much padding among themselves."""
    for at in range(len(batch) // 2, len(batch) - 1):
        if padding_share(lengths[batch[at:]]) <= max_padding:
            return batch[:at], batch[at:]
    return batch[:-1], batch[-1:]


def padding_share(lengths: Rows) -> float:
    """Return which share of a batch of rows of these lengths is padding."""
    return 1 - float(lengths.sum() / (lengths.max() * len(lengths)))
