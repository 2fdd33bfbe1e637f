"""An engine as a worker needs it: loaded, and past its canary."""

from pathlib import Path
from typing import Literal, NoReturn, cast

from storage.specs import StateSpec
from tasks import messages
from tasks.batch_search import choose_batch_tokens
from tasks.channel import Channel
from tasks.engine.base import Engine, EngineOptions, ReadableEngine
from tasks.engine.canary import CANARY_TOKENS, check_engine, fits_twice, reference_options
from tasks.engine.errors import EngineError
from tasks.engine.layers import LayerId
from tasks.engine.loading import load_engine
from tasks.engine.models import read_model
from tasks.engine.reference_engine import ReferenceEngine
from tasks.engine.tensor_parallel import end_process
from tasks.remote_errors import to_message

MAX_SEQUENCES = 64
# Said at once, since nothing moves meanwhile and people think it hangs.
_READY = {"cpu": "ready", "cuda": "ready; the first batch compiles kernels, for about a minute"}


def start_engine(start: messages.Start, storage_dtype: str, channel: Channel) -> ReadableEngine:
    """Load the engine that `start` describes and run its canary; says meanwhile what it does.

    Raises:
        EngineError: it cannot be loaded, or computes other states than it must.
    """

    def tell_and_end(error: EngineError) -> NoReturn:
        try:
            channel.send(to_message(error))
        finally:
            end_process(error)

    channel.send(messages.Phase("load model"))
    engine = load_engine(_options(start, storage_dtype), tell_and_end)
    channel.send(messages.Phase("canary"))
    _check(engine)
    channel.send(messages.Phase(_READY[start.device]))
    return engine


def find_batch_tokens(start: messages.Start, engine: Engine, spec: StateSpec, channel: Channel) -> int:
    """Return how many tokens a batch may have: as `start` says, or the best of several that it names."""
    room = min(start.max_batch_tokens, engine.options.max_batch_tokens)
    candidates = [size for size in start.batch_candidates if size <= room] or [room]
    if len(candidates) == 1:
        return candidates[0]
    channel.send(messages.Phase("look for the best size of batches"))
    chosen = choose_batch_tokens(engine, spec, read_model(engine.options.model).vocab_size, candidates)
    channel.send(messages.Phase(f"batches of up to {chosen:,} tokens"))
    return chosen


def _check(engine: ReadableEngine) -> None:
    model = read_model(engine.options.model)
    reference = ReferenceEngine(reference_options(engine, model)) if fits_twice(model) else None
    try:
        check_engine(engine, model, reference)
    finally:
        if reference is not None:
            reference.close()


def _options(start: messages.Start, storage_dtype: str) -> EngineOptions:
    return EngineOptions(
        model=Path(start.model),
        layers=cast("tuple[LayerId, ...]", tuple(start.layers)),
        compute_dtype=start.compute_dtype,
        output_dtype=storage_dtype,
        device=cast('Literal["cpu", "cuda"]', start.device),
        max_batch_tokens=max(start.max_batch_tokens, CANARY_TOKENS),
        max_sequences=MAX_SEQUENCES,
        tp_size=start.tp_size,
        ep_size=start.ep_size,
        quantization=start.quantization,
        deterministic=start.deterministic,
        rounds_inputs=start.quantization is not None or read_model(Path(start.model)).rounds_inputs,
    )
