"""Deterministic on a CPU: a sequence has the same bits in any batch, on any number of threads."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.engine.base import EngineOptions, ReadableEngine
from tasks.engine.canary import check_engine, reference_options
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.engine.reference_engine import ReferenceEngine

LENGTHS = (1, 2, 5, 7, 16, 70, 300)
SEQUENCES = [np.random.default_rng(length).integers(5, 30_000, length).astype(np.int32) for length in LENGTHS]


# The two that were furthest from it: every sequence, and the shortest, differed in their last bits.
@pytest.fixture(scope="module", params=["qwen3-moe", "llama"])
def engine(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[ReadableEngine]:
    model = tiny_model(request.param)
    engine = load_engine(
        EngineOptions(model, (1, 8, "final"), "float32", "float32", "cpu", 512, 16, deterministic=True)
    )
    yield engine
    engine.close()


@pytest.fixture
def alone(engine: ReadableEngine) -> list[torch.Tensor]:
    return [engine.forward([ids]) for ids in SEQUENCES]


def test_packed_and_alone_have_the_same_bits(engine: ReadableEngine, alone: list[torch.Tensor]) -> None:
    assert torch.equal(engine.forward(SEQUENCES), torch.cat(alone))
    assert torch.equal(engine.forward(SEQUENCES[::-1]), torch.cat(alone[::-1]))


def test_so_have_one_thread_and_three(engine: ReadableEngine, alone: list[torch.Tensor]) -> None:
    """A run that is taken up with another number of engines gives each another share of the cores."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        states = engine.forward(SEQUENCES)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert torch.equal(states, torch.cat(alone))


def test_the_canary_passes(engine: ReadableEngine) -> None:
    """The states are right, and what it reads out is what it generates."""
    info = read_model(engine.options.model)
    check_engine(engine, info, ReferenceEngine(reference_options(engine, info)))
