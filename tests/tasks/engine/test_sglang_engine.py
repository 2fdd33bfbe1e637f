"""The SGLang forward against transformers, on every architecture of the table, layer by layer."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from tiny_models import TINY_MODELS

from tasks.engine import cpu_kernels
from tasks.engine.architectures import ARCHITECTURES, Architecture
from tasks.engine.base import Engine, EngineOptions
from tasks.engine.canary import check_engine
from tasks.engine.errors import EngineStateError
from tasks.engine.layers import resolve_layers
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.engine.reference_engine import ReferenceEngine

# Of dense models every layer has the same bits. SGLang's experts and absorbed MLA multiply in another order.
LIMIT = 2e-6
# Packed, a product has other rows around it and may be summed in another order: 2.5e-6 seen (qwen3-next).
PACKED_LIMIT = 5e-6
# Past the sliding windows of Gemma-3 (64) and gpt-oss (128), two chunks of linear attention, and where yarn begins.
LONG, LONG_WITH_YARN = 320, 1100


def all_layers(model: Path) -> EngineOptions:
    layers = (*range(read_model(model).num_layers + 1), "final")
    return EngineOptions(
        model=model,
        layers=layers,
        compute_dtype="float32",
        output_dtype="float32",
        device="cpu",
        max_batch_tokens=4096,
        max_sequences=16,
    )


def architecture(model: Path) -> Architecture:
    return ARCHITECTURES[read_model(model).architecture]


def norm_weight(model: Path) -> torch.Tensor:
    """The weight of the final norm, as the checkpoint has it."""
    with safe_open(model / "model.safetensors", "pt") as weights:
        (name,) = (key for key in weights.keys() if key.endswith("model.norm.weight"))  # noqa: SIM118 - no mapping
        return weights.get_tensor(name).float()


def random_ids(num_tokens: int, seed: int = 0) -> npt.NDArray[np.int32]:
    return np.random.default_rng(seed).integers(5, 30_000, num_tokens).astype(np.int32)


def relative_error(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    ours, theirs = ours.double(), theirs.double()
    return float((ours - theirs).norm() / theirs.norm())


def limit(name: str) -> float:
    """The largest relative error that a layer may have."""
    entry = TINY_MODELS[name]
    has_experts = any(key.endswith("_experts") for key in entry.get("text_config", entry))
    is_mla = ARCHITECTURES[entry["architectures"][0]].mla
    return LIMIT if has_experts or is_mla else 0.0


def long(name: str) -> int:
    """The number of tokens beyond which nothing new happens in this model."""
    return LONG_WITH_YARN if "original_max_position_embeddings" in json.dumps(TINY_MODELS[name]) else LONG


@pytest.fixture(scope="class", params=TINY_MODELS)
def engines(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[tuple[str, Engine, Engine]]:
    options = all_layers(tiny_model(request.param))
    ours, theirs = load_engine(options), ReferenceEngine(options)
    yield request.param, ours, theirs
    ours.close()
    theirs.close()


class TestEveryArchitecture:
    # A class, so that one engine is closed before the next test loads another.
    def test_every_layer_equals_transformers(self, engines: tuple[str, Engine, Engine]) -> None:
        name, ours, theirs = engines
        for num_tokens in (1, 17, long(name)):
            ids = random_ids(num_tokens)
            mine, reference = ours.forward([ids]), theirs.forward([ids])
            assert mine.shape == reference.shape == (num_tokens, 10, 256)
            for slot, layer in enumerate(ours.options.layers):
                assert relative_error(mine[:, slot], reference[:, slot]) <= limit(name), f"{num_tokens}, layer {layer}"

    def test_final_is_the_norm_of_the_last_stream_in_the_flavour_of_the_table(
        self, engines: tuple[str, Engine, Engine]
    ) -> None:
        _, ours, _ = engines
        stream, final = ours.forward([random_ids(64)])[:, -2:].unbind(1)
        scale = norm_weight(ours.options.model) + architecture(ours.options.model).unit_offset
        expected = stream * torch.rsqrt(stream.square().mean(-1, keepdim=True) + 1e-6) * scale
        assert relative_error(final, expected) <= 1e-5

    def test_the_canary_passes(self, engines: tuple[str, Engine, Engine]) -> None:
        """What it compares with the engine's own next tokens needs the LM head, which a wrapper has inside."""
        _, ours, theirs = engines
        check_engine(ours, read_model(ours.options.model), theirs)

    def test_layers_differ_from_their_neighbours(self, engines: tuple[str, Engine, Engine]) -> None:
        """So that the test above can see an off-by-one."""
        _, ours, _ = engines
        states = ours.forward([random_ids(64)])
        for slot in range(states.shape[1] - 1):
            assert relative_error(states[:, slot], states[:, slot + 1]) > 1e-2

    def test_packed_equals_alone(self, engines: tuple[str, Engine, Engine]) -> None:
        """Ragged, with a shared prefix and the same sequence twice."""
        name, ours, _ = engines
        twice = random_ids(120, seed=1)
        short = [random_ids(5, seed=2), twice, twice[:40], random_ids(1, seed=3), twice, random_ids(77, seed=4)]
        sequences = [*short, random_ids(long(name), seed=5)]
        packed = torch.split(ours.forward(sequences), [len(ids) for ids in sequences])
        for ids, states in zip(sequences, packed, strict=True):
            alone = ours.forward([ids])
            for slot in range(alone.shape[1]):
                assert relative_error(states[:, slot], alone[:, slot]) <= PACKED_LIMIT


def test_pools_are_free_after_any_batch(tiny_model: Callable[[str], Path]) -> None:
    """A full batch runs as often as one likes, and after a batch that was refused or failed."""
    engine = load_engine(all_layers(tiny_model("llama")))
    ids = random_ids(engine.options.max_batch_tokens // 4)
    first = engine.forward([ids] * 4)
    with pytest.raises(EngineStateError, match="over the engine's 4096 tokens"):
        engine.forward([ids] * 5)
    with pytest.raises(IndexError):
        engine.forward([np.array([10**6], np.int32)])  # a token outside the vocabulary
    assert torch.equal(engine.forward([ids] * 4), first)
    engine.close()


# A plain list; marks on the blocks, which SGLang never takes back; a packed buffer; hooks alone.
WAYS_TO_CAPTURE = ("llama", "qwen3-moe", "deepseek-v3", "gemma3")
SETS: tuple[tuple[int | str, ...], ...] = ((2, 4, 5, "final"), ("final",), (1, 3, 7, 8), (0, 6, "final"), (8,))


@pytest.mark.parametrize("name", WAYS_TO_CAPTURE)
def test_any_set_of_layers_after_any_other_in_one_process(tiny_model: Callable[[str], Path], name: str) -> None:
    everything = all_layers(tiny_model(name))
    ids = [random_ids(20, seed) for seed in (1, 2)]
    reference = ReferenceEngine(everything).forward(ids)
    for layers in SETS:
        ours = load_engine(replace(everything, layers=layers))
        mine = torch.cat([ours.forward([sequence]) for sequence in ids])
        ours.close()
        assert mine.shape == (40, len(layers), 256)
        for slot, layer in enumerate(layers):
            expected = reference[:, everything.layers.index(layer)]
            assert relative_error(mine[:, slot], expected) <= limit(name), f"{layers}, layer {layer}"


def test_a_sequence_over_what_is_computed_right_is_refused(tiny_model: Callable[[str], Path]) -> None:
    """SGLang's triton attention does not know Llama-4's chunks, so that longer sequences would be wrong."""
    model = tiny_model("llama4")
    chunk = json.loads((model / "config.json").read_text())["text_config"]["attention_chunk_size"]
    engine = load_engine(all_layers(model))
    with pytest.raises(EngineStateError, match=f"{chunk + 1} tokens is over the {chunk} tokens"):
        engine.forward([random_ids(chunk + 1)])
    assert len(engine.forward([random_ids(chunk)])) == chunk
    engine.close()


def test_states_are_rounded_to_the_output_dtype(tiny_model: Callable[[str], Path]) -> None:
    exact = all_layers(tiny_model("llama"))
    ids = random_ids(33)
    engine = load_engine(exact)
    states = engine.forward([ids])
    engine.close()
    engine = load_engine(replace(exact, output_dtype="bfloat16"))
    rounded = engine.forward([ids])
    engine.close()
    assert rounded.dtype == torch.bfloat16
    assert torch.equal(rounded, states.to(torch.bfloat16))


def test_the_real_model_equals_transformers(smollm2: Path) -> None:
    options = all_layers(smollm2)
    ours, theirs = load_engine(options), ReferenceEngine(options)
    ids = random_ids(200)
    mine, reference = ours.forward([ids]), theirs.forward([ids])
    ours.close()
    assert torch.equal(mine, reference)


@pytest.mark.parametrize("num_draft_layers", [1, 2, 5, 8])
@pytest.mark.parametrize("num_layers", [12, 30, 36, 61, 80])
def test_the_layers_of_dflash_are_those_of_sglang(num_layers: int, num_draft_layers: int) -> None:
    """SGLang counts the outputs of blocks from 0, which are the streams that enter the next."""
    cpu_kernels.install()
    from sglang.srt.speculative.dflash_utils import build_target_layer_ids

    theirs = build_target_layer_ids(num_layers, num_draft_layers)
    assert resolve_layers(f"dflash:{num_draft_layers}", num_layers) == tuple(layer + 1 for layer in theirs)
