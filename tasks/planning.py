"""The plan of a run: what the store lacks, how much that is, and whether there is room for it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.catalog import read_catalog
from storage.files import backend_of, exists
from storage.hashes import Hashes, distinct
from storage.layout import check_version
from storage.packing import SHARDS_PER_PACK
from storage.packs import SHARD_BYTES
from storage.paths import StorePath
from storage.specs import StateSpec
from storage.tokens import Tokens
from tasks.batches import make_units
from tasks.errors import NotEnoughSpaceError

# Real states come to 1.41 raw bytes a stored byte, chunk padding and metadata included (docs/format.md); rounded down,
# so that a plan that fits does fit.
EXPECTED_RATIO = 1.35
# float8 comes to 2.3 there, and to 2 without any compression.
EXPECTED_FLOAT8_RATIO = 2.2
# Kept free beside the states: reports, logs, metadata.
RESERVE_BYTES = 256 << 20
# Parts become smaller when so many of the first size are left, down to this share of it.
_PARTS_AT_THE_END = 8
_SMALLEST_SHARE = 4
# Compaction writes a pack before the loose objects in it go.
PACK_BYTES = SHARD_BYTES * SHARDS_PER_PACK


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do.

    Attributes:
        rows: rows of the data with token ids.
        duplicates: those of them whose ids an earlier row has.
        stored: indexes into the tokens artifact of distinct samples that the store has: int64[n].
        missing: indexes into the tokens artifact of samples to compute, in data order: int64[n].
        lengths: their lengths in tokens: int64[n].
        tokens: tokens in all distinct samples.
        raw_bytes: what the missing states measure in the storage dtype.
        stored_bytes: what they will take on disk, expected.
        free_bytes: free space where the store is; None where there is no end of it.
    """

    rows: int
    duplicates: int
    stored: npt.NDArray[np.int64]
    missing: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    tokens: int
    raw_bytes: int
    stored_bytes: int
    free_bytes: int | None

    @property
    def reused(self) -> int:
        """Distinct samples that the store has."""
        return len(self.stored)

    @property
    def missing_tokens(self) -> int:
        """Tokens to compute."""
        return int(self.lengths.sum())

    def tokens_of(self, samples: npt.NDArray[np.int64]) -> int:
        """Tokens of some of the samples to compute, given as in `missing`."""
        return int(self.lengths[np.isin(self.missing, samples)].sum())


def make_plan(store: StorePath, spec: StateSpec, tokens: Tokens, span: range | None = None) -> Plan:
    """Ask the store what it lacks; reads directory listings and indexes, and loads no model.

    Args:
        store: the store.
        spec: the states.
        tokens: the samples.
        span: rows of `tokens` that the plan is of; by default all. A row whose sample comes before is a duplicate.
    """
    hashes = tokens.hashes
    span = range(len(hashes)) if span is None else span
    samples = distinct(hashes)
    samples = samples[(samples >= span.start) & (samples < span.stop)]
    lengths = np.diff(tokens.offsets)
    is_missing = _is_missing(store, spec, hashes[samples])
    missing = samples[is_missing]
    raw_bytes = int(lengths[missing].sum()) * spec.bytes_per_token
    return Plan(
        rows=len(span),
        duplicates=len(span) - len(samples),
        stored=samples[~is_missing],
        missing=missing,
        lengths=lengths[missing],
        tokens=int(lengths[samples].sum()),
        raw_bytes=raw_bytes,
        stored_bytes=int(raw_bytes / (EXPECTED_FLOAT8_RATIO if spec.is_scaled else EXPECTED_RATIO)),
        free_bytes=backend_of(store).free_bytes(store),
    )


def require_space(plan: Plan, store: StorePath, *, compact: bool) -> None:
    """Refuse a plan that does not fit the disk; `compact` is whether the run packs what it wrote.

    Raises:
        NotEnoughSpaceError: with what is needed, what is free, and the cure.
    """
    needed = plan.stored_bytes + RESERVE_BYTES + (min(plan.stored_bytes, PACK_BYTES) if compact else 0)
    if len(plan.missing) and plan.free_bytes is not None and needed > plan.free_bytes:
        raise NotEnoughSpaceError(
            f"{store} has {plan.free_bytes:,} bytes free, the run needs about {needed:,} "
            f"({plan.missing_tokens:,} tokens, {plan.raw_bytes:,} raw bytes); free some space, capture "
            "fewer layers, or put the store elsewhere"
        )


def cut_units(plan: Plan, *, unit_tokens: int, num_groups: int) -> list[npt.NDArray[np.int64]]:
    """Cut the missing samples into units of work of about `unit_tokens` tokens each."""
    units = make_units(plan.lengths.tolist(), unit_tokens=unit_tokens, num_groups=num_groups)
    return [plan.missing[unit] for unit in units if unit]


def cut_parts(plan: Plan, part_tokens: int) -> list[npt.NDArray[np.int64]]:
    """Cut the missing samples into parts for several machines, of about `part_tokens` tokens each.

    The last ones are smaller, down to a quarter, so that machines that do not work alike end at about the same time.
    """
    ends = np.cumsum(plan.lengths)
    parts = []
    start = done = 0
    while start < len(ends):
        left = int(ends[-1]) - done
        size = max(part_tokens // _SMALLEST_SHARE, min(part_tokens, left // _PARTS_AT_THE_END), 1)
        size = left if left < 3 * size // 2 else size  # no crumb at the end
        stop = max(start + 1, int(np.searchsorted(ends, done + size, "right")))
        parts.append(plan.missing[start:stop])
        start, done = stop, int(ends[stop - 1])
    return parts


def _is_missing(store: StorePath, spec: StateSpec, hashes: Hashes) -> npt.NDArray[np.bool_]:
    if not exists(store):
        return np.ones(len(hashes), bool)
    check_version(store)
    return read_catalog(store, spec).index.find(hashes) < 0
