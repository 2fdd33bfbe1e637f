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
from tasks.engine.errors import EngineStateError
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
            with pytest.raises(EngineStateError, match="over the engine's 512 tokens"):
                engine.forward([random_ids(513)])  # which no rank takes amiss
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
    assert b"rank 1 of 2 was killed by SIGKILL, and the engine with it" in said


FORWARDS = """
import pathlib, sys, numpy, tasks.engine.loading as loading, tasks.engine.base as base
model, device, dtype, tp_size = sys.argv[1:]
options = base.EngineOptions(pathlib.Path(model), (0, "final"), dtype, dtype, device, 512, tp_size=int(tp_size))
engine = loading.load_engine(options)
while True:
    engine.forward([numpy.arange(5, 505, dtype=numpy.int32)]).cpu()
    print("done", flush=True)
"""


@pytest.mark.parametrize(
    ("device", "dtype", "tp_size"),
    [("cpu", "float32", 4), pytest.param("cuda", "bfloat16", 2, marks=pytest.mark.gpu)],
)
def test_a_rank_lost_while_the_first_waits_for_it_ends_all(
    tiny_model: Callable[[str], Path], device: str, dtype: str, tp_size: int
) -> None:
    """Its process is stopped first, so that the first rank hangs in a collective operation when it is killed."""
    if device == "cuda" and torch.cuda.device_count() < tp_size:
        pytest.skip(f"needs {tp_size} GPUs, there is {torch.cuda.device_count()}")
    command = [sys.executable, "-c", FORWARDS, str(tiny_model("llama")), device, dtype, str(tp_size)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"done\n"
        lost, *others = psutil.Process(first.pid).children()
        lost.suspend()
        time.sleep(3)
        assert first.poll() is None
        killed = time.monotonic()
        lost.kill()
        first.wait(300)
        print(f"{device}, {tp_size} ranks: ended {time.monotonic() - killed:.2f} s after one was lost")
        _, said = first.communicate()
    assert first.returncode == 1
    assert f"rank 1 of {tp_size} was killed by SIGKILL, and the engine with it".encode() in said
    psutil.wait_procs([lost, *others], timeout=60)
    assert not [rank for rank in (lost, *others) if rank.is_running()]


OUT_OF_MEMORY = """
import pathlib, sys, numpy, torch
from tasks.engine import base, errors, loading, tensor_parallel
options = base.EngineOptions(pathlib.Path(sys.argv[1]), (4, "final"), "float32", "float32", "cpu", 512, tp_size=2)
engine = loading.load_engine(options)
sequences = [numpy.arange(5, 105, dtype=numpy.int32)]
states, forward = engine.forward(sequences), engine._engine.forward

def run_out_of_memory(sequences, after):
    if after:
        forward(sequences)
    raise errors.EngineOutOfMemoryError("no room, says the test")

for after in (True, False):
    engine._engine.forward = lambda sequences: run_out_of_memory(sequences, after)
    tensor_parallel._MEET_SECONDS = 3
    try:
        engine.forward(sequences)
    except errors.EngineOutOfMemoryError:
        engine._engine.forward = forward
        print("went on", torch.equal(engine.forward(sequences), states), flush=True)
"""


def test_ranks_that_ran_out_of_memory_go_on_if_they_left_the_forward_at_one_place(
    tiny_model: Callable[[str], Path],
) -> None:
    """The first rank says that it has no room when all have computed, then before, while the other one computes."""
    command = [sys.executable, "-c", OUT_OF_MEMORY, str(tiny_model("llama"))]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout == "went on True\n"
    assert ran.returncode == 1
    assert "one of 2 ranks ran out of memory where others did not, and the engine ended with it" in ran.stderr


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
