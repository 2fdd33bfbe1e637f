"""What a tokens artifact holds, in a few numbers: lengths, how much is learnt, and a digest that no order changes."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.tokens import Tokens

_SHARES = 10
# Read at a time.
_BLOCK_TOKENS = 1 << 22


@dataclass(frozen=True)
class Histogram:
    """Counts of values: `counts[i]` of at least `edges[i]` and below `edges[i + 1]`; the last edge is within."""

    edges: list[float]
    counts: list[int]


@dataclass(frozen=True)
class TokensSummary:
    """A tokens artifact in a few numbers.

    Attributes:
        samples: kept samples, duplicates included.
        tokens: in all of them.
        supervised_tokens: those that are learnt.
        length: of samples, in tokens.
        supervised: learnt tokens of a sample.
        supervised_share: learnt tokens of a sample by its length.
        content_digest: of ids and masks of all samples; the same whatever their order, the files, and what made them.
    """

    samples: int
    tokens: int
    supervised_tokens: int
    length: Histogram
    supervised: Histogram
    supervised_share: Histogram
    content_digest: str


def summarize_tokens(tokens: Tokens) -> TokensSummary:
    """Read the masks of a tokens artifact once, in bounded memory.

    Raises:
        CorruptObjectError: it is damaged.
    """
    lengths, hashes = np.diff(tokens.offsets), tokens.hashes
    supervised = np.zeros(len(tokens), np.int64)
    total = 0
    for start, stop in _blocks(tokens.offsets):
        masks = tokens.loss_masks(start, stop)
        bounds = tokens.offsets[start : stop + 1] - tokens.offsets[start]
        supervised[start:stop] = np.add.reduceat(masks, bounds[:-1], dtype=np.int64)
        total += _digest_sum(hashes[start:stop], masks, bounds)
    return TokensSummary(
        samples=len(tokens),
        tokens=tokens.num_tokens,
        supervised_tokens=int(supervised.sum()),
        length=_by_powers(lengths),
        supervised=_by_powers(supervised),
        supervised_share=_by_shares(supervised / lengths),
        content_digest=f"{total % 2**256:064x}",
    )


def _blocks(offsets: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Cut the rows into blocks of some tokens, of one row at least."""
    start = 0
    while start < len(offsets) - 1:
        stop = int(np.searchsorted(offsets, offsets[start] + _BLOCK_TOKENS, "right")) - 1
        yield start, max(stop, start + 1)
        start = max(stop, start + 1)


def _digest_sum(hashes: npt.NDArray[np.uint8], masks: npt.NDArray[np.uint8], bounds: npt.NDArray[np.int64]) -> int:
    """Add up the digests of samples with their masks: a sum does not know of order, and forgets no copy."""
    starts, data = bounds.tolist(), masks.tobytes()
    return sum(
        int.from_bytes(hashlib.sha256(name.tobytes() + data[starts[i] : starts[i + 1]]).digest())
        for i, name in enumerate(hashes)
    )


def _by_powers(values: npt.NDArray[np.int64]) -> Histogram:
    edges = [0, *(1 << power for power in range(int(values.max(initial=1)).bit_length() + 1))]
    return _histogram(values, edges)


def _by_shares(values: npt.NDArray[np.float64]) -> Histogram:
    return _histogram(values, [i / _SHARES for i in range(_SHARES + 1)])


def _histogram(values: npt.NDArray[np.generic], edges: Sequence[float]) -> Histogram:
    return Histogram(list(edges), np.histogram(values, edges)[0].tolist())
