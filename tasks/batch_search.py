"""How many tokens a batch should have: tried once for a model on a kind of device, and remembered."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from storage.digests import canonical_json
from storage.specs import StateSpec
from tasks.engine.base import Engine
from tasks.engine.errors import EngineOutOfMemoryError, EngineStateError
from tasks.smollm2 import user_cache

# A batch this much slower than the best one is as good, and holds less memory.
TOLERANCE = 0.98
# Of what is tried: about that of chats.
SEQUENCE_TOKENS = 1024


def choose_batch_tokens(engine: Engine, spec: StateSpec, vocab_size: int, candidates: Sequence[int]) -> int:
    """Return the size of batches for an engine: as remembered, else the smallest that is nearly as fast as any."""
    file = user_cache() / "batch_tokens" / f"{_key(engine, spec, candidates)}.json"
    if (known := _read(file, candidates)) is not None:
        return known
    rates = measure_rates(engine, vocab_size, candidates)
    chosen = pick(rates) if rates else candidates[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    staging = file.with_name(f".{file.name}.{os.getpid()}")
    staging.write_text(json.dumps({"batch_tokens": chosen, "tokens_per_second": rates}))
    staging.replace(file)
    return chosen


def measure_rates(
    engine: Engine, vocab_size: int, candidates: Sequence[int], clock: Callable[[], float] = time.perf_counter
) -> dict[int, float]:
    """Return tokens per second of a batch of each size, as far as the device has room; each is run twice."""
    rates: dict[int, float] = {}
    for size in candidates:
        batch = _draw(size, vocab_size, engine.options.max_sequences)
        try:
            _run(engine, batch)  # the first of its size compiles kernels
            began = clock()
            _run(engine, batch)
        except (EngineOutOfMemoryError, EngineStateError):
            break
        rates[size] = size / (clock() - began)
    return rates


def pick(rates: dict[int, float]) -> int:
    """Return the smallest size whose rate is nearly the best."""
    return min(size for size, rate in rates.items() if rate >= TOLERANCE * max(rates.values()))


def _run(engine: Engine, batch: list[npt.NDArray[np.int32]]) -> None:
    engine.forward(batch)
    if engine.options.device == "cuda":
        torch.cuda.synchronize()


def _draw(num_tokens: int, vocab_size: int, max_sequences: int) -> list[npt.NDArray[np.int32]]:
    count = min(max(1, num_tokens // SEQUENCE_TOKENS), max_sequences)
    ids = np.random.default_rng(num_tokens).integers(0, vocab_size, num_tokens).astype(np.int32)
    return np.array_split(ids, count)


def _key(engine: Engine, spec: StateSpec, candidates: Sequence[int]) -> str:
    options = engine.options
    known: dict[str, Any] = {
        "spec": spec.digest(),
        "tp_size": options.tp_size,
        "ep_size": options.ep_size,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else options.device,
        "candidates": list(candidates),
        "torch": torch.__version__,
    }
    return hashlib.sha256(canonical_json(known)).hexdigest()[:16]


def _read(file: Path, candidates: Sequence[int]) -> int | None:
    try:
        known = json.loads(file.read_bytes())["batch_tokens"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return known if known in candidates else None
