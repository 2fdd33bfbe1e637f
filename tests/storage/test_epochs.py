"""An epoch has each row once, in batches that keep the rules, in an order of its own that is easy on disks."""

from collections import Counter
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.epochs import BatchRules, make_batches, padding_share, split_batches

RULES = BatchRules(max_tokens=4000, max_padding=0.05, seed=7, run_tokens=3000, window_runs=5)


def make_rows(count: int, seed: int = 0, longest: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (count, 32), dtype=np.uint8), rng.integers(1, longest, count, dtype=np.int64)


def rows_of(batches: list[np.ndarray]) -> list[int]:
    return [int(row) for batch in batches for row in batch]


rules = st.builds(
    BatchRules,
    max_tokens=st.integers(1, 3000),
    max_padding=st.floats(0, 0.9),
    seed=st.integers(0, 5),
    run_tokens=st.integers(1, 5000),
    window_runs=st.integers(1, 9),
)


@settings(deadline=None)  # two busy cores
@given(rules, st.integers(0, 60), st.integers(0, 3), st.integers(1, 9))
def test_each_row_is_in_one_batch_that_keeps_the_rules_for_any_number_of_ranks(
    rules: BatchRules, count: int, epoch: int, ranks: int
) -> None:
    hashes, lengths = make_rows(count)
    batches = make_batches(hashes, lengths, rules, epoch)
    split = split_batches(batches, lengths, rules.max_padding, ranks)
    assert sorted(rows_of(batches)) == list(range(count))
    assert rows_of(split) == rows_of(batches)
    for batch in split:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= rules.max_tokens
        assert padding_share(lengths[batch]) <= rules.max_padding + 1e-12
    assert len(split) % ranks == 0 or all(len(batch) == 1 for batch in split)


def test_an_epoch_is_decided_by_seed_and_number_and_each_has_another_order() -> None:
    hashes, lengths = make_rows(500)
    orders = [rows_of(make_batches(hashes, lengths, RULES, epoch)) for epoch in (0, 1, 2, 0)]
    assert orders[3] == orders[0]
    other_seed = rows_of(make_batches(hashes, lengths, replace(RULES, seed=8), 0))
    assert len({tuple(order) for order in [*orders, other_seed]}) == 4


def test_an_epoch_is_the_same_in_every_later_version() -> None:
    """A training state names batches by their number: they must not change with Aerie or numpy."""
    hashes = np.frombuffer(b"".join(sha256(bytes([i])).digest() for i in range(12)), np.uint8).reshape(12, 32)
    lengths = np.array([100, 90, 80, 70, 60, 50, 100, 90, 80, 70, 60, 50])
    rules = BatchRules(max_tokens=300, max_padding=0.2, seed=7, run_tokens=150, window_runs=3)
    assert [batch.tolist() for batch in make_batches(hashes, lengths, rules, 3)] == [
        [0, 7, 8],
        [2, 4],
        [9, 10, 11, 5],
        [6, 1, 3],
    ]


def test_a_window_is_a_few_ranges_of_hashes_from_all_over_the_epoch() -> None:
    hashes, lengths = make_rows(3000)
    place = np.empty(len(hashes), np.int64)
    place[np.lexsort(hashes.T[::-1])] = np.arange(len(hashes))
    order = place[rows_of(make_batches(hashes, lengths, replace(RULES, run_tokens=30_000), 0))]
    half = np.sort(order[:100])  # 30,000 tokens are about 40 rows, and the window has 5 runs of those
    assert 2 <= np.count_nonzero(np.diff(half) > 50) + 1 <= 5
    assert half[-1] - half[0] > len(hashes) / 4
    assert not np.array_equal(order[:100], half)


def test_batches_of_long_rows_are_not_all_at_one_end() -> None:
    hashes, lengths = make_rows(3000)
    longest = [int(lengths[batch].max()) for batch in make_batches(hashes, lengths, RULES, 0)]
    halves = np.mean(longest[: len(longest) // 2]), np.mean(longest[len(longest) // 2 :])
    assert halves[0] == pytest.approx(halves[1], rel=0.1)


def test_real_lengths_fill_batches_well() -> None:
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(6.5, 0.8, 20_000), 8, 8192).astype(np.int64)
    hashes = make_rows(len(lengths))[0]
    rules = BatchRules(max_tokens=16_384)
    batches = make_batches(hashes, lengths, rules, 0)
    padded = sum(int(lengths[batch].max()) * len(batch) for batch in batches)
    assert 1 - lengths.sum() / padded < 0.05
    assert lengths.sum() / len(batches) > 0.75 * rules.max_tokens


def test_rows_of_one_sample_are_all_kept() -> None:
    hashes, lengths = make_rows(40)
    twice = np.concatenate([hashes, hashes]), np.concatenate([lengths, lengths])
    assert Counter(row % 40 for row in rows_of(make_batches(*twice, RULES, 0))) == dict.fromkeys(range(40), 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        ({"window_runs": 0}, "window_runs is 0"),
        ({"run_tokens": -1}, "run_tokens is -1"),
        ({"max_padding": 1.0}, "max_padding is 1.0; it must be a share from 0 to below 1"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_rules_out_of_range_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(RULES, **change)
