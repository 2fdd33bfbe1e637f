"""A model shared by two ranks: on the CPU, where they meet through gloo, and its experts on two GPUs."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import torch

from tasks.engine.base import EngineOptions
from tasks.engine.canary import check_engine, reference_options, relative_error
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.engine.reference_engine import ReferenceEngine

# fp32 sums in another order: 6e-7 seen (llama), 5e-7 (qwen3-moe), 9e-7 (deepseek-v3).
ROUNDING = 5e-6
# In a tiny random mixture of experts one rounding sends a token to another expert.
ROUTER_FLIPS = 1.5


def random_ids(num_tokens: int) -> npt.NDArray[np.int32]:
    return np.random.default_rng(num_tokens).integers(5, 30_000, num_tokens).astype(np.int32)


@pytest.mark.parametrize("name", ["llama", "qwen3-moe", "deepseek-v3"])
def test_two_ranks_compute_every_layer_as_one_does(tiny_model: Callable[[str], Path], name: str) -> None:
    info = read_model(tiny_model(name))
    layers = (*range(info.num_layers + 1), "final")
    options = EngineOptions(info.path, layers, "float32", "float32", "cpu", max_batch_tokens=512)
    sequences = [random_ids(num_tokens) for num_tokens in (5, 300, 1, 70)]

    def run(tp_size: int) -> torch.Tensor:
        engine = load_engine(replace(options, tp_size=tp_size))
        try:
            check_engine(engine, info, ReferenceEngine(reference_options(engine, info)))
            return engine.forward(sequences)
        finally:
            engine.close()

    alone, shared = run(1), run(2)
    assert shared.shape == (sum(map(len, sequences)), len(layers), info.hidden_size)
    errors = [relative_error(shared[:, slot], alone[:, slot]) for slot in range(len(layers))]
    print(f"{name}: largest difference of a layer {max(errors):.1e}")
    assert max(errors) <= ROUNDING


LOAD = """
import sys, pathlib, tasks.engine.loading as loading, tasks.engine.base as base
loading.load_engine(base.EngineOptions(pathlib.Path(sys.argv[1]), (0,), "float32", "float32", "cpu", 512, tp_size=2))
"""


def test_a_rank_that_dies_ends_the_first_rather_than_letting_it_wait(tiny_model: Callable[[str], Path]) -> None:
    command = [sys.executable, "-c", LOAD, str(tiny_model("llama"))]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as first:
        parent = psutil.Process(first.pid)
        while first.poll() is None and not parent.children():
            time.sleep(0.01)
        [rank] = parent.children()
        rank.kill()
        _, said = first.communicate(timeout=300)
    assert first.returncode == 1
    assert b"rank 1 ended with exit code -9; this one ends too" in said


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen3-moe", "deepseek-v3"])
def test_two_gpus_that_deal_out_the_experts_err_as_one_does(tiny_model: Callable[[str], Path], name: str) -> None:
    """Both in bf16 against transformers in float32."""
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two GPUs, there is {torch.cuda.device_count()}")
    info = read_model(tiny_model(name))
    layers = (*range(info.num_layers + 1), "final")
    options = EngineOptions(info.path, layers, "bfloat16", "bfloat16", "cuda", max_batch_tokens=4096)
    ids = random_ids(700)
    truth = ReferenceEngine(replace(options, compute_dtype="float32", output_dtype="float32")).forward([ids])

    def errors(tp_size: int, ep_size: int) -> list[float]:
        engine = load_engine(replace(options, tp_size=tp_size, ep_size=ep_size))
        try:
            check_engine(engine, info, ReferenceEngine(reference_options(engine, info)))
            states = engine.forward([ids])
            return [relative_error(states[:, slot], truth[:, slot]) for slot in range(len(layers))]
        finally:
            engine.close()

    alone, dealt = errors(1, 1), errors(2, 2)
    for layer, one, two in zip(layers, alone, dealt, strict=True):
        print(f"{name} layer {layer}: one GPU {one:.2e}, tp2:ep2 {two:.2e}")
        assert two <= ROUTER_FLIPS * one + 1e-4
