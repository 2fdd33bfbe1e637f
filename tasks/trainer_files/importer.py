"""A folder of a trainer's files becomes a store: its tokens artifact, then the states that the store lacks, packed."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt

from storage.digests import sample_hash
from storage.files import default_threads
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.specs import StateSpec, TokensSpec
from storage.store import add_spec, init_store
from storage.tokens import Tokens, TokensWriter, open_tokens
from storage.values import EXPONENT_BITS, largest_bits
from tasks.engine.models import ModelInfo, read_model
from tasks.errors import ImportFilesError
from tasks.fingerprints import model_fingerprint
from tasks.hub import find_model
from tasks.planning import Plan, make_plan, require_space
from tasks.tokens_specs import tokenizer_digest
from tasks.trainer_files.import_specs import ImportRequest, make_import_spec
from tasks.trainer_files.sources import SOURCES, Source, SourceFile, read_file

OnProgress = Callable[[str, int, int], None]
MAX_THREADS = 16
# Files that are read ahead of the one whose tokens are written.
_BLOCK_FILES = 256


@dataclass(frozen=True)
class ImportInfo:
    """What an import did.

    Attributes:
        files: read.
        written: samples stored now.
        present: samples that the store had, or that another file had before.
        tokens: of all files.
        spec_digest: what names the states.
        tokens_digest: what names the tokens artifact.
    """

    files: int
    written: int
    present: int
    tokens: int
    spec_digest: str
    tokens_digest: str


@dataclass(frozen=True)
class ImportPlan:
    """What an import would do.

    Attributes:
        files: that would be read.
        plan: what the store lacks, and whether there is room for it.
        spec_digest: what names the states.
        tokens_digest: what names the tokens artifact.
    """

    files: int
    plan: Plan
    spec_digest: str
    tokens_digest: str


@dataclass(frozen=True)
class _Import:
    """A request, checked against its first file and the model."""

    request: ImportRequest
    source: Source
    files: list[Path]
    model: ModelInfo
    spec: StateSpec
    threads: int

    def read(self, path: Path) -> SourceFile:
        return read_file(self.source, path, self.model.hidden_size)

    def read_all(self) -> Iterator[SourceFile]:
        """Read all files in their order, some at a time on threads."""
        with ThreadPoolExecutor(self.threads) as pool:
            for start in range(0, len(self.files), _BLOCK_FILES):
                yield from pool.map(self.read, self.files[start : start + _BLOCK_FILES])


def import_files(
    request: ImportRequest, *, threads: int | None = None, on_progress: OnProgress | None = None
) -> ImportInfo:
    """Put the files of a folder into a store; done again, it goes on where it was.

    Args:
        request: what the files are.
        threads: that read and encode; by default one a core, at most 16.
        on_progress: called with the name of a step, what of it is done, and all of it.

    Raises:
        ImportFilesError: a file is not what was said, or holds states that no model has computed.
        EngineError, TokenizerError: the model.
        StorageError, NotEnoughSpaceError: the store cannot be written.
    """
    tell = on_progress or (lambda *_: None)
    job = _prepare(request, threads)
    init_store(request.store)
    tokens = _ensure_tokens(job, tell)
    plan = make_plan(request.store, job.spec, tokens)
    require_space(plan, request.store, compact=True)
    digest = add_spec(request.store, job.spec)
    _write_states(job, plan, tell)
    compact(request.store, digest, on_progress=lambda done, total: tell("compact", done, total))
    written = len(plan.missing)
    return ImportInfo(len(tokens), written, len(tokens) - written, tokens.num_tokens, digest, tokens.digest)


def plan_import(
    request: ImportRequest, *, threads: int | None = None, on_progress: OnProgress | None = None
) -> ImportPlan:
    """Say what `import_files` would do: token ids of all files are read, and the states of the first.

    Args:
        request: as for `import_files`.
        threads: that read.
        on_progress: as for `import_files`.

    Raises:
        ImportFilesError, EngineError, TokenizerError, StorageError: as `import_files`.
    """
    job = _prepare(request, threads)
    with TemporaryDirectory(prefix="aerie-import-") as scratch:
        elsewhere = replace(job, request=replace(request, store=Path(scratch)))
        tokens = _ensure_tokens(elsewhere, on_progress or (lambda *_: None))
        plan = make_plan(request.store, job.spec, tokens)
    return ImportPlan(len(job.files), plan, job.spec.digest(), tokens.digest)


def _prepare(request: ImportRequest, threads: int | None) -> _Import:
    source = SOURCES.get(request.source)
    if source is None:
        raise ImportFilesError(f"{request.source!r} is no source; give one of {', '.join(SOURCES)}")
    files = sorted(path for path in request.folder.rglob("*") if path.name.endswith(source.suffixes))
    if not files:
        raise ImportFilesError(
            f"{request.folder} has no file *{' or *'.join(source.suffixes)}; give the folder of them"
        )
    model = read_model(find_model(request.model))
    first = read_file(source, files[0], model.hidden_size)
    spec = make_import_spec(request, source, first, model, model_fingerprint(model.path))
    return _Import(request, source, files, model, spec, threads or min(MAX_THREADS, default_threads(request.store)))


def _ensure_tokens(job: _Import, tell: OnProgress) -> Tokens:
    """Return the tokens artifact of the files, named by their token ids and masks."""
    content = hashlib.sha256()
    for number, file in enumerate(job.read_all(), start=1):
        _require_like_first(job, file)
        content.update(bytes.fromhex(sample_hash(file.input_ids)) + hashlib.sha256(file.loss_mask.tobytes()).digest())
        tell("look at files", number, len(job.files))
    imported = f"imported from {job.source.name}"
    spec = TokensSpec((content.hexdigest(),), tokenizer_digest(job.model.path), imported)
    found = open_tokens(job.request.store, spec.digest())
    if found is not None:
        return found
    with TokensWriter(job.request.store, spec) as writer:
        for number, file in enumerate(job.read_all()):
            writer.append(file.input_ids, file.loss_mask, number)
            tell("tokens", number + 1, len(job.files))
        return writer.commit()


def _require_like_first(job: _Import, file: SourceFile) -> None:
    if file.num_layers != job.spec.num_captured or file.dtype != job.spec.dtype.states:
        raise ImportFilesError(
            f"{file.path} has {file.num_layers} layers of {file.dtype}, {job.files[0]} has {job.spec.num_captured} of "
            f"{job.spec.dtype.states}; import them from folders of their own"
        )


def _write_states(job: _Import, plan: Plan, tell: OnProgress) -> None:
    writer = ObjectWriter(job.request.store, job.spec)

    def write(row: int) -> int:
        file = job.read(job.files[row])
        states = file.states()
        _require_computed(file.path, states, job.spec)
        return writer.write(file.input_ids, states).num_tokens

    done = 0
    with ThreadPoolExecutor(job.threads) as pool:
        for start in range(0, len(plan.missing), _BLOCK_FILES):
            rows: Sequence[int] = plan.missing[start : start + _BLOCK_FILES].tolist()
            for num_tokens in pool.map(write, rows):
                done += num_tokens
                tell("states", done, plan.missing_tokens)


def _require_computed(path: Path, states: npt.NDArray[Any], spec: StateSpec) -> None:
    """Refuse what `aerie validate` would call bad: states that are not finite, or zero after a block."""
    for slot, layer in enumerate(spec.layers):
        largest = largest_bits(states[:, slot])
        bad = int((largest >= EXPONENT_BITS[spec.dtype.states]).sum())
        zero = int((largest == 0).sum()) if layer != 0 else 0
        if bad or zero:
            what = f"NaN or infinity in {bad}" if bad else f"nothing but zeros in {zero}"
            raise ImportFilesError(
                f"{path} has {what} of {len(states)} tokens, layer {layer}; take it out of the folder"
            )
