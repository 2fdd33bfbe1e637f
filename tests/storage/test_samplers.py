"""Ranks share an epoch exactly, and training taken up again has exactly the batches that it lacked."""

import json
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from storage.epochs import BatchRules
from storage.errors import ResumeError
from storage.samplers import TokenBatchSampler

COUNT = 203
RULES = BatchRules(max_tokens=900, seed=3, run_tokens=700, window_runs=4)


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (COUNT, 32), dtype=np.uint8), rng.integers(1, 400, COUNT, dtype=np.int64)


def make_ranks(rows: tuple, world_size: int, state: dict | None = None) -> list[TokenBatchSampler]:
    ranks = [TokenBatchSampler(*rows, RULES, rank=rank, world_size=world_size) for rank in range(world_size)]
    for sampler in ranks:
        if state is not None:
            sampler.load_state_dict(state)
    return ranks


def take(sampler: TokenBatchSampler, steps: int) -> Iterator[list[int]]:
    for batch, _ in zip(sampler, range(steps), strict=False):
        sampler.advance()
        yield batch


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 64])
def test_ranks_have_each_row_once_in_as_many_batches_each(rows, world_size: int) -> None:
    shares = [list(sampler) for sampler in make_ranks(rows, world_size)]
    assert Counter(row for share in shares for batch in share for row in batch) == dict.fromkeys(range(COUNT), 1)
    assert len({len(share) for share in shares}) == 1
    assert [len(sampler) for sampler in make_ranks(rows, world_size)] == [len(share) for share in shares]


def test_more_ranks_than_rows_leave_some_idle_and_lose_none(rows) -> None:
    few = rows[0][:5], rows[1][:5]
    assert sorted(row for sampler in make_ranks(few, 8) for batch in sampler for row in batch) == list(range(5))


def test_drawing_batches_ahead_consumes_none(rows) -> None:
    (sampler,) = make_ranks(rows, 1)
    before = sampler.state_dict()
    assert list(sampler) == list(sampler)
    assert sampler.state_dict() == before


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_state_taken_anywhere_gives_exactly_the_batches_that_were_left(rows, world_size: int) -> None:
    whole = [list(sampler) for sampler in make_ranks(rows, world_size)]
    for stop in (0, 1, 5, len(whole[0]) - 1, len(whole[0])):
        ranks = make_ranks(rows, world_size)
        taken = [list(take(sampler, stop)) for sampler in ranks]
        states = {json.dumps(sampler.state_dict()) for sampler in ranks}
        assert len(states) == 1, "any rank's state serves all"
        resumed = make_ranks(rows, world_size, json.loads(states.pop()))
        assert [first + list(rest) for first, rest in zip(taken, resumed, strict=True)] == whole


def test_any_sequence_of_world_sizes_has_each_row_once(rows) -> None:
    seen: Counter[int] = Counter()
    state = None
    for world_size, steps in ((2, 3), (3, 2), (1, 4), (1, 1), (5, 2), (2, 1), (4, COUNT)):
        ranks = make_ranks(rows, world_size, state)
        seen.update(row for sampler in ranks for batch in take(sampler, steps) for row in batch)
        state = ranks[0].state_dict()
    assert seen == dict.fromkeys(range(COUNT), 1)


def test_the_next_epoch_starts_anew_in_another_order(rows) -> None:
    (sampler,) = make_ranks(rows, 1)
    first = list(take(sampler, 4))
    sampler.next_epoch()
    assert sampler.epoch == 1
    second = list(sampler)
    assert sorted(row for batch in second for row in batch) == list(range(COUNT))
    assert second[:4] != first
    (resumed,) = make_ranks(rows, 1, sampler.state_dict())
    assert list(resumed) == second


def test_a_state_of_other_rows_or_rules_is_refused(rows) -> None:
    (sampler,) = make_ranks(rows, 1)
    state = sampler.state_dict()
    others = [
        TokenBatchSampler(rows[0][1:], rows[1][1:], RULES),
        TokenBatchSampler(rows[0][::-1], rows[1][::-1], RULES),
        TokenBatchSampler(*rows, BatchRules(max_tokens=901, seed=3, run_tokens=700, window_runs=4)),
    ]
    for other in others:
        with pytest.raises(ResumeError, match="use those of then, or start anew"):
            other.load_state_dict(state)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rows, rank: int, world_size: int) -> None:
    with pytest.raises(ValueError, match=f"rank is {rank}, world_size {world_size}"):
        TokenBatchSampler(*rows, RULES, rank=rank, world_size=world_size)
