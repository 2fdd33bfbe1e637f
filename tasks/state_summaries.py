"""What states are like, layer by layer: their norms, channels that stand out, and how far they were compressed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from storage.specs import LayerId
from storage.store import Store

# Enough to see what a layer is like; hashes are random, so the first are as good as any.
NUM_SAMPLES = 32
ROWS_PER_SAMPLE = 512
# Of raw states, at the end of every run, perhaps from a bucket: at least one sample, though.
MOST_BYTES = 256 << 20
NUM_OUTLIERS = 3


@dataclass(frozen=True)
class Outlier:
    """A channel, and its share of the sum of all squares: 1 / hidden_size would be even."""

    channel: int
    share: float


@dataclass(frozen=True)
class LayerSummary:
    """One layer in a few numbers.

    Attributes:
        layer: its id.
        raw_bytes: of the whole samples that were looked at, uncompressed.
        stored_bytes: their encoded chunks.
        norm: Euclidean norms of the states: the least, the median, the 99th percentile, the largest.
        outliers: the channels that have most of it.
    """

    layer: LayerId
    raw_bytes: int
    stored_bytes: int
    norm: tuple[float, float, float, float]
    outliers: list[Outlier]

    @property
    def ratio(self) -> float:
        """Raw bytes by stored bytes."""
        return self.raw_bytes / self.stored_bytes


@dataclass(frozen=True)
class StatesSummary:
    """States in a few numbers: how many samples and tokens of them were looked at, and each layer."""

    samples: int
    tokens: int
    layers: list[LayerSummary]


def summarize_states(store: Store, hashes: Sequence[str]) -> StatesSummary | None:
    """Look at the first rows of some samples; None if the store has none of them.

    Raises:
        CorruptObjectError: one is damaged.
    """
    names = _choose(store, hashes)
    if not names:
        return None
    layers = store.spec.layers
    blocks = store.read_hidden_states(names, rows=slice(0, ROWS_PER_SAMPLE))
    raw, stored = _count_bytes(store, names)
    found = []
    for slot, layer in enumerate(layers):
        states = np.concatenate([block[:, slot] for block in blocks]).astype(np.float32)
        found.append(LayerSummary(layer, raw, stored[slot], _norms(states), _find_outliers(states)))
    return StatesSummary(len(names), sum(map(len, blocks)), found)


def _choose(store: Store, hashes: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    left = MOST_BYTES
    for name in islice((name for name in hashes if name in store), NUM_SAMPLES):
        left -= store[name].num_tokens * store.spec.bytes_per_token
        if chosen and left < 0:
            break
        chosen.append(name)
    return chosen


def _count_bytes(store: Store, names: Sequence[str]) -> tuple[int, Counter[int]]:
    """Return the raw bytes of a layer, and the encoded ones of each."""
    stored: Counter[int] = Counter()
    num_tokens = 0
    for name in names:
        sample = store[name]
        num_tokens += sample.num_tokens
        for chunk in sample.stored_rows.encoded():
            stored[chunk.slot] += len(chunk.data)
    return num_tokens * store.spec.bytes_per_token // store.spec.num_captured, stored


def _norms(states: npt.NDArray[np.float32]) -> tuple[float, float, float, float]:
    least, median, high, most = np.percentile(np.linalg.norm(states, axis=1), [0, 50, 99, 100]).tolist()
    return least, median, high, most


def _find_outliers(states: npt.NDArray[np.float32]) -> list[Outlier]:
    energy = np.square(states, dtype=np.float64).sum(axis=0)
    shares = energy / energy.sum()
    top = np.argsort(shares)[::-1][:NUM_OUTLIERS]
    return [Outlier(int(channel), float(shares[channel])) for channel in top]
