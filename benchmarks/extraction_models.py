"""The models that extraction is timed with, their tokens, and a worker over each: random weights, made on the spot."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from gauges import GaugedEngine
from inputs import draw
from models import SMOLLM2, ensure_model

from storage import StateSpec, init_store
from storage.specs import TokensSpec
from storage.store import Store, add_spec, open_store
from storage.tokens import Tokens, TokensWriter
from tasks import messages
from tasks.channel import Channel
from tasks.encoding_jobs import default_threads
from tasks.engine.layers import DEFAULT_LAYERS, resolve_layers
from tasks.engine.models import ModelInfo, read_model
from tasks.worker import Worker

# Llama-3.2-1B, DeepSeek-V3 but for the number and size of its experts, and the model of a run of 10,000 samples whose
# raw states fit a disk of 64 GB.
_1B = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_key_value_heads": 8}
_SHAPES = ("llama-8b", "llama-1b", "deepseek-moe", "llama-256")
NAMES = (*_SHAPES, SMOLLM2)
SMALL = {"llama-8b": "llama", "llama-1b": "qwen3", "deepseek-moe": "deepseek-v3", "llama-256": "llama"}


def make_model(name: str, folder: Path, *, small: bool) -> Path:
    """Return the folder of a model of `NAMES`: made in `folder`, or for a small run a tiny one of its architecture."""
    if small or name == SMOLLM2:
        return ensure_model(SMALL.get(name, name))[0]
    from large_models import make_large_model  # noqa: PLC0415 - imports torch; of tests/, which `models` put on the path

    folder.mkdir(parents=True)
    return make_large_model(_config(name), folder)


def _config(name: str) -> dict[str, Any]:
    from large_models import LARGE_MODELS  # noqa: PLC0415
    from tiny_configs import TINY_MODELS  # noqa: PLC0415

    if name == "llama-256":
        return TINY_MODELS["llama"] | {
            "max_position_embeddings": 8192,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        }
    if name == "llama-1b":
        return LARGE_MODELS["llama-8b"] | _1B
    if name == "deepseek-moe":
        quantized = LARGE_MODELS["deepseek-v3-fp8-block"]
        return {key: value for key, value in quantized.items() if key != "quantization_config"}
    return LARGE_MODELS[name]


def draw_lengths(num_tokens: int, shortest: int, longest: int, seed: int = 0) -> list[int]:
    """Draw lengths of samples, uniformly, that come to about so many tokens."""
    random = np.random.default_rng(seed)
    count = max(1, round(num_tokens / ((shortest + longest) / 2)))
    lengths: list[int] = random.integers(shortest, longest + 1, count).tolist()
    return lengths


@dataclass(frozen=True, slots=True)
class Subject:
    """One model, ready: what is computed, by which engine, into which store.

    Attributes:
        model: its folder.
        tokens: the samples.
        store: where ours go.
        worker: an engine and its write path, as an engine process has them; its engine is gauged.
        engine: that engine.
        said: when the worker said what, by `time.monotonic`.
        start: how it was started.
    """

    model: ModelInfo
    tokens: Tokens
    store: Store
    worker: Worker
    engine: GaugedEngine
    said: list[tuple[float, messages.Message]]
    start: messages.Start

    def close(self) -> None:
        """Free the model."""
        self.worker.close()


def make_subject(folder: Path, store: Path, lengths: Sequence[int], device: str, settings: dict[str, Any]) -> Subject:
    """Load a model, and write its tokens and spec into a new store; `settings` are fields of `messages.Start`."""
    model = read_model(folder)
    dtype = "bfloat16" if device == "cuda" else "float32"
    spec = StateSpec(
        model_fingerprint="0" * 64,
        architecture=model.architecture,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        layers=resolve_layers(DEFAULT_LAYERS, model.num_layers),
        compute_dtype=dtype,
        storage_dtype="bfloat16",
        quantization=None,
        engine="sglang",
        engine_version="0.5.17",
    )
    init_store(store)
    digest = add_spec(store, spec)
    tokens = _write_tokens(store, model, lengths)
    fields: dict[str, Any] = {
        "model": str(folder),
        "layers": list(spec.layers),
        "compute_dtype": dtype,
        "quantization": None,
        "deterministic": False,
        "device": device,
        "gpus": [],
        "tp_size": 1,
        "ep_size": 1,
        "max_batch_tokens": 16_384,
        "batch_candidates": [],
        "store": str(store),
        "spec_digest": digest,
        "tokens_digest": tokens.digest,
        "encode_threads": default_threads(device, len(os.sched_getaffinity(0))),
        "max_in_flight_bytes": 2 << 30,
        "recheck_fraction": 0.01,
        "max_growth_bytes": None,
        "trace": None,
        "parent_pid": os.getpid(),
    }
    start = messages.Start(**fields | settings)
    said, channel = _listen()
    worker = Worker(start, channel, tokens, open_store(store, digest), _end)
    engine = worker.launcher.engine = GaugedEngine(worker.launcher.engine)
    return Subject(model, tokens, open_store(store, digest), worker, engine, said, start)


def _write_tokens(store: Path, model: ModelInfo, lengths: Sequence[int]) -> Tokens:
    with TokensWriter(store, TokensSpec(data=("drawn",), tokenizer="none", chat_template="none")) as writer:
        for row, ids in enumerate(draw(lengths, model.vocab_size, seed=0)):
            writer.append(ids, np.ones(len(ids), np.uint8), row)
        return writer.commit()


def _listen() -> tuple[list[tuple[float, messages.Message]], Channel]:
    ours, theirs = Pipe()
    said: list[tuple[float, messages.Message]] = []
    threading.Thread(target=_hear, args=(ours, said), daemon=True).start()
    return said, Channel(theirs)


def _hear(connection: Connection, said: list[tuple[float, messages.Message]]) -> None:
    while True:
        try:
            message = messages.decode(connection.recv_bytes())
        except EOFError:  # the worker is gone
            return
        said.append((time.monotonic(), message))
        if isinstance(message, messages.Phase):
            print(f"  {message.name}", file=sys.stderr, flush=True)


def _end(error: BaseException) -> None:
    print(f"the write path ended: {error}", file=sys.stderr, flush=True)
