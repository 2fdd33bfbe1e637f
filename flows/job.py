"""A job: settings resolved against the model and the machine, every check done that needs no work."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.progress import Counting, Progress
from flows.settings import Settings
from flows.token_choices import make_options
from storage.files import backend_of, exists, names
from storage.layout import HEADER, check_version
from storage.paths import StorePath
from storage.specs import StateSpec, TokensSpec
from storage.tokens import Tokens
from tasks import messages
from tasks.batches import list_candidates
from tasks.encoding_jobs import default_threads
from tasks.engine.architectures import get_architecture
from tasks.engine.devices import DeviceGroup, num_cores, parse_devices
from tasks.engine.layers import resolve_layers
from tasks.engine.models import ModelInfo, read_model
from tasks.engine.precision import Precision, choose_precision
from tasks.engine.rank_counts import check_ranks
from tasks.engine.version import check_version as check_engine_version
from tasks.fingerprints import model_fingerprint
from tasks.hub import find_model, find_revision
from tasks.inputs.data_files import find_files
from tasks.planning import Plan
from tasks.token_options import TokenOptions
from tasks.tokens_specs import make_tokens_spec

# On a CPU a small batch is as fast, shows progress and loses little to an interruption.
CPU_BATCH_TOKENS = 2_048
# Reading less than this takes a few seconds, and nobody needs to be told.
QUIET_BYTES = 1 << 30


@dataclass(frozen=True)
class Job:
    """All that a run needs to know.

    Attributes:
        settings: what the user asked for.
        model: the model folder.
        precision: dtype and quantization of the forward.
        spec: what the states depend on.
        tokens_spec: what the tokens artifact depends on.
        groups: one entry an engine process.
        data: the data files.
        options: what is made of them.
    """

    settings: Settings
    model: ModelInfo
    precision: Precision
    spec: StateSpec
    tokens_spec: TokensSpec
    groups: tuple[DeviceGroup, ...]
    data: tuple[Path, ...]
    options: TokenOptions

    @property
    def store(self) -> StorePath:
        """The store's folder."""
        return self.settings.store

    @property
    def spec_digest(self) -> str:
        """The digest that names the states."""
        return self.spec.digest()

    @property
    def revision(self) -> str | None:
        """The Hub revision of the model, where it lies in the Hub's cache."""
        return find_revision(self.model.path)

    @property
    def data_bytes(self) -> int:
        """Size of all data files."""
        return sum(path.stat().st_size for path in self.data)

    @property
    def tokenization(self) -> dict[str, Any]:
        """The arguments of `tasks.tokenization.ensure_tokens` but where to and progress."""
        return {
            "spec": self.tokens_spec,
            "model": self.model.path,
            "data": self.data,
            "options": self.options,
            "workers": self.settings.tokenize_workers,
        }

    @property
    def device(self) -> str:
        """`cpu` or `cuda`; groups never mix them."""
        return self.groups[0].kind

    def start_message(self, plan: Plan, tokens_digest: str) -> messages.Start:
        """Say how an engine process starts; its pool has room for the longest sample of the plan."""
        candidates = self._batch_candidates()
        return messages.Start(
            model=str(self.model.path.absolute()),
            layers=list(self.spec.layers),
            compute_dtype=self.spec.compute_dtype,
            quantization=self.precision.online,
            deterministic=self.settings.deterministic,
            device=self.device,
            gpus=[],  # each engine process has its own
            tp_size=self.groups[0].tp_size,
            ep_size=self.groups[0].ep_size,
            max_batch_tokens=max(*candidates, int(plan.lengths.max(initial=1))),
            batch_candidates=candidates,
            store=str(self.store.absolute()),
            spec_digest=self.spec_digest,
            tokens_digest=tokens_digest,
            encode_threads=self.settings.encode_threads or self._default_encode_threads(),
            max_in_flight_bytes=self.settings.max_in_flight_bytes,
            recheck_fraction=self.settings.recheck_fraction,
            max_growth_bytes=self.settings.max_growth_bytes,
            trace=str(self.settings.trace) if self.settings.trace else None,
            parent_pid=os.getpid(),
        )

    def _batch_candidates(self) -> list[int]:
        """Return how many tokens a batch may have: one number, or several to try."""
        asked = self.settings.max_batch_tokens
        if asked == "auto" and self.device == "cuda":
            return list_candidates(self.spec.bytes_per_token, self.settings.max_in_flight_bytes)
        return [CPU_BATCH_TOKENS if asked == "auto" else asked]

    def _default_encode_threads(self) -> int:
        # Most of the time that object storage takes is waiting.
        most = default_threads(self.device, num_cores() // len(self.groups))
        return max(backend_of(self.store).min_threads, most)


def prepare_job(
    settings: Settings, progress: Progress | None = None, groups: tuple[DeviceGroup, ...] | None = None
) -> Job:
    """Check everything that can be checked before work starts; nothing is written and no model is loaded.

    Args:
        settings: what the user asked for.
        progress: where a first look at a large model is shown: all of its bytes are read.
        groups: of other hosts that are to do the work; by default what the settings choose of this one.

    Raises:
        EngineError: the SGLang version, model, architecture, layers or devices.
        DataError, TokenizerError: the data files or the tokenizer.
        StorageError: the store has another format version, or its place is taken by something else.
    """
    groups = groups or parse_devices(settings.devices)
    model, precision, spec = _resolve(settings, groups[0], progress)
    data, options = tuple(find_files(settings.data)), make_options(settings, model.context_length)
    tokens_spec = make_tokens_spec(model.path, data, options)
    return Job(settings, model, precision, spec, tokens_spec, groups, data, options)


def prepare_part(settings: Settings, tokens: Tokens, progress: Progress | None = None) -> Job:
    """Do the same for work whose tokens are there already: the data files need not be.

    Raises:
        EngineError, StorageError: as above.
    """
    groups = parse_devices(settings.devices)
    model, precision, spec = _resolve(settings, groups[0], progress)
    options = make_options(settings, model.context_length)
    return Job(settings, model, precision, spec, TokensSpec.from_json(tokens.spec), groups, (), options)


def _resolve(
    settings: Settings, group: DeviceGroup, progress: Progress | None
) -> tuple[ModelInfo, Precision, StateSpec]:
    """Resolve the settings against the model and a device group."""
    engine_version = check_engine_version()
    model = read_model(find_model(settings.model))
    get_architecture(model.architecture)
    check_ranks(model, group.kind, group.tp_size, group.ep_size)
    split = group.tp_size // group.ep_size
    precision = choose_precision(model, group.kind, settings.dtype, settings.quantization, split)
    layers = resolve_layers(settings.layers, model.num_layers)
    check_store_place(settings.store)
    spec = StateSpec(
        model_fingerprint=_fingerprint(model.path, progress),
        architecture=model.architecture,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        layers=layers,
        compute_dtype=precision.compute_dtype,
        storage_dtype=settings.storage_dtype,
        quantization=precision.quantization,
        engine="sglang",
        engine_version=engine_version,
        numerics={"deterministic": True} if settings.deterministic else {},
        mantissa_bits=settings.mantissa_bits,
    )
    return model, precision, spec


def _fingerprint(model: Path, progress: Progress | None) -> str:
    if progress is None:
        return model_fingerprint(model)
    counting = Counting(progress, "fingerprint", "bytes")
    return model_fingerprint(model, lambda done, total: counting(done, total) if total >= QUIET_BYTES else None)


def check_store_place(path: StorePath) -> None:
    """Refuse what holds anything but a store of this version; what is missing or empty becomes one.

    Raises:
        StorageError: it does, or cannot be written.
    """
    # Names that start with a dot: the header of another run that starts now.
    backend = backend_of(path)
    is_empty = backend.is_folder(path) and all(name.startswith(f".{HEADER}") for name in names(path))
    if exists(path) and not is_empty:
        check_version(path)
    backend.check_place(path)
