"""A job for one engine without a flow: a store with random token ids, and how a worker is told of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from storage.specs import StateSpec, TokensSpec
from storage.store import Store, add_spec, init_store, open_store
from storage.tokens import Tokens, TokensWriter
from tasks.engine.models import read_model
from tasks.messages import Start

LAYERS = (0, 4, "final")


@dataclass(frozen=True)
class EngineJob:
    start: Start
    tokens: Tokens
    spec: StateSpec

    @property
    def store(self) -> Store:
        return open_store(self.start.store, self.start.spec_digest)

    def missing(self) -> list[int]:
        """Return the samples that the store lacks."""
        lacking = set(self.store.missing(self.tokens.sample_hashes))
        return [index for index, name in enumerate(self.tokens.sample_hashes) if name in lacking]


def make_engine_job(
    store: Path, model: Path, lengths: Sequence[int], max_batch_tokens: int = 512, recheck_fraction: float = 0.0
) -> EngineJob:
    info = read_model(model)
    spec = StateSpec(
        model_fingerprint="f" * 64,
        architecture=info.architecture,
        num_layers=info.num_layers,
        hidden_size=info.hidden_size,
        layers=LAYERS,
        compute_dtype="float32",
        storage_dtype="bfloat16",
        quantization=None,
        engine="sglang",
        engine_version="0.5.17",
    )
    init_store(store)
    add_spec(store, spec)
    tokens = _make_tokens(store, lengths)
    start = Start(
        model=str(model),
        layers=list(LAYERS),
        compute_dtype="float32",
        quantization=None,
        deterministic=False,
        device="cpu",
        gpus=[],
        tp_size=1,
        ep_size=1,
        max_batch_tokens=max_batch_tokens,
        batch_candidates=[max_batch_tokens],
        store=str(store),
        spec_digest=spec.digest(),
        tokens_digest=tokens.digest,
        encode_threads=2,
        max_in_flight_bytes=1 << 24,
        recheck_fraction=recheck_fraction,
        max_growth_bytes=None,
        trace=None,
        parent_pid=os.getpid(),
    )
    return EngineJob(start, tokens, spec)


def _make_tokens(store: Path, lengths: Sequence[int]) -> Tokens:
    spec = TokensSpec(data=(repr(lengths),), tokenizer="t", chat_template="c")
    with TokensWriter(store, spec) as writer:
        for row, num_tokens in enumerate(lengths):
            ids = np.random.default_rng([row, num_tokens]).integers(5, 30_000, num_tokens).astype(np.int32)
            writer.append(ids, np.ones(num_tokens, np.uint8), row)
        return writer.commit()
