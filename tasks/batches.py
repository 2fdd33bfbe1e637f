"""Token-budget batches and units of work. Pure integers."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise

# Tokens of a batch, of which the best is found by trying (`batch_search`).
CANDIDATES = (4096, 8192, 16_384, 32_768, 65_536)


def list_candidates(bytes_per_token: int, max_in_flight_bytes: int) -> list[int]:
    """Return the sizes to try: a batch of states takes at most half of what may wait to be written."""
    return [size for size in CANDIDATES if size * bytes_per_token <= max_in_flight_bytes // 2] or [CANDIDATES[0]]


def make_batches(lengths: Sequence[int], *, max_tokens: int, max_sequences: int) -> list[list[int]]:
    """Cut sequences into batches of at most `max_tokens` tokens and `max_sequences` sequences, longest first.

    Returns indexes into `lengths`, every index once. A sequence longer than `max_tokens` is a batch alone.

    Raises:
        ValueError: a limit is below 1.
    """
    _require_positive(max_tokens=max_tokens, max_sequences=max_sequences)
    batches: list[list[int]] = []
    num_tokens = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        num_tokens += lengths[index]
        if not batches or num_tokens > max_tokens or len(batches[-1]) == max_sequences:
            batches.append([])
            num_tokens = lengths[index]
        batches[-1].append(index)
    return batches


def make_units(lengths: Sequence[int], *, unit_tokens: int, num_groups: int) -> list[list[int]]:
    """Cut sequences, in their order, into units of about `unit_tokens` tokens for `num_groups` engines to share.

    Returns indexes into `lengths`, every index once. Units are runs of neighbours, so that an engine reads one stretch
    of the tokens artifact. Their number is a multiple of `num_groups` (unless there are fewer sequences) and none
    exceeds the mean by more than the longest sequence, so that all engines finish at about the same time.

    Raises:
        ValueError: a limit is below 1.
    """
    _require_positive(unit_tokens=unit_tokens, num_groups=num_groups)
    ends = list(accumulate(lengths))
    total = ends[-1] if ends else 0
    rounds = max(1, -(-total // (unit_tokens * num_groups)))
    num_units = min(rounds * num_groups, len(lengths))
    cuts = [0]
    for unit in range(1, num_units + 1):
        nearest = bisect_left(ends, total * unit / num_units) + 1
        # At least one sequence for this unit, and one left for each that follows.
        cuts.append(max(cuts[-1] + 1, min(nearest, len(lengths) - (num_units - unit))))
    return [list(range(start, end)) for start, end in pairwise(cuts)]


def _require_positive(**limits: int) -> None:
    for name, value in limits.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
