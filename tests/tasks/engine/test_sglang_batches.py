"""Packing on a CPU: each sequence of a batch has as many rows, and the same values, as it has alone."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file

from tasks.engine.base import Engine, EngineOptions
from tasks.engine.loading import load_engine

Ids = npt.NDArray[np.int32]

# Dense, experts, latent attention, a sliding window.
KINDS = ("llama", "qwen3-moe", "deepseek-v3", "gemma3")
# Two blocks (of DeepSeek-V3 the second has the experts) show what eight would, in a quarter of the time.
NUM_LAYERS = 2
# Experts multiply as many rows at once as a batch gives them, and round otherwise: 2.8e-7 seen, elsewhere equal bits.
LIMIT = 2e-6


def random_ids(num_tokens: int, seed: int) -> Ids:
    return np.random.default_rng(seed).integers(5, 30_000, num_tokens).astype(np.int32)


def cut_down(model: Path, folder: Path) -> Path:
    """The first blocks of a model."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text()) | {"num_hidden_layers": NUM_LAYERS}
    config.pop("layer_types", None)  # of all blocks; transformers makes it anew
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    first = tuple(f".layers.{index}." for index in range(NUM_LAYERS))
    kept = {name: weight for name, weight in weights.items() if ".layers." not in name or any(x in name for x in first)}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module", params=KINDS)
def engine(
    request: pytest.FixtureRequest, tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    model = cut_down(tiny_model(request.param), tmp_path_factory.mktemp("models") / request.param)
    engine = load_engine(EngineOptions(model, (1, 2, "final"), "float32", "float32", "cpu", 24_000, 16))
    yield engine
    engine.close()


def assert_as_alone(engine: Engine, sequences: list[Ids]) -> list[torch.Tensor]:
    """Run a batch, compare each of its sequences with the same alone, and return their states."""
    states = engine.forward(sequences)
    assert states.shape == (sum(map(len, sequences)), 3, 256)
    packed = torch.split(states, [len(ids) for ids in sequences])
    for ids, rows in zip(sequences, packed, strict=True):
        alone = engine.forward([ids])
        assert alone.shape == rows.shape
        errors = (rows - alone).double().norm(dim=(0, 2)) / alone.double().norm(dim=(0, 2))
        assert float(errors.max()) <= LIMIT
    return list(packed)


def test_sixteen_sequences_of_1500_tokens(engine: Engine) -> None:
    assert_as_alone(engine, [random_ids(1500, seed) for seed in range(16)])


def test_five_tokens_beside_five_hundred(engine: Engine) -> None:
    assert_as_alone(engine, [random_ids(5, 1), random_ids(500, 2)])
    assert_as_alone(engine, [random_ids(500, 2), random_ids(5, 1)])


def test_a_shared_prefix_has_the_same_states_in_each_sequence(engine: Engine) -> None:
    """Behind the prefix they differ, and no sequence is given the other's."""
    prefix = random_ids(200, 1)
    sequences = [np.concatenate([prefix, random_ids(length, length)]) for length in (100, 1, 50)]
    packed = assert_as_alone(engine, [*sequences, prefix])
    for states in packed:
        torch.testing.assert_close(states[:200], packed[-1], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(packed[0][200], packed[1][200], rtol=0.1, atol=0.1)


def test_the_same_sequence_twice_has_the_same_states_twice(engine: Engine) -> None:
    twice = random_ids(300, 1)
    first, _, second = assert_as_alone(engine, [twice, random_ids(70, 2), twice])
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4)
