"""An export: the files of all rows on threads, then what the format needs beside them, then the end of the manifest."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.draft_vocabularies import read_draft_vocabularies
from storage.files import clear_errors, default_threads
from storage.hashes import order_of
from storage.specs import LayerId
from storage.staged_files import make_folder, sync_folder, sync_tree
from tasks.errors import ExportError
from tasks.trainer_files.base import Norm
from tasks.trainer_files.manifest import STAGING, Manifest
from tasks.trainer_files.plan import ExportPlan, require_room
from tasks.trainer_files.row_files import RowFiles

OnProgress = Callable[[int, int], None]
MAX_THREADS = 16
# While one waits for the disk, another decodes.
THREADS_PER_CORE = 2
# Rows that are handed to each thread ahead of time.
_AHEAD = 4


@dataclass(frozen=True)
class ExportInfo:
    """What an export did.

    Attributes:
        folder: where the files are.
        rows: in all.
        written: rows whose file was written now.
        present: rows whose file was there and right.
        missing: rows that were asked for and have no states.
        bytes: of the files of all rows.
        layers: those that a drafter reads, in our ids.
        owner_ids: the same as the trainer counts them.
        last: the layer that the LM head reads; None where the format has no slot for it.
        norm: whether that is after the final norm or before it.
        vocabularies: files of draft vocabularies.
    """

    folder: Path
    rows: int
    written: int
    present: int
    missing: int
    bytes: int
    layers: tuple[LayerId, ...]
    owner_ids: list[int]
    last: LayerId | None
    norm: Norm | None
    vocabularies: list[Path]


def export_rows(plan: ExportPlan, *, threads: int | None = None, on_progress: OnProgress | None = None) -> ExportInfo:
    """Write the files of a plan into its folder, but those that are there already.

    Args:
        plan: what to write, and where.
        threads: that read, decode and write; by default two a core, at most 16.
        on_progress: called with the tokens of the rows done and of all.

    Raises:
        ExportError: the folder holds something else, or another process writes there.
        NotEnoughSpaceError: there is no room.
        StorageError: stored states are damaged, or the folder cannot be written.
    """
    threads = threads or min(MAX_THREADS, THREADS_PER_CORE * default_threads(plan.store.path))
    with clear_errors(plan.folder), Manifest(plan.folder, plan.identity(), plan.describe()) as manifest:
        _require_planned(plan, manifest)
        require_room(plan, sum(entry.bytes for entry in manifest.entries.values()))
        with _staging(plan.folder) as staging:
            files = RowFiles(plan, manifest, staging)
            _ensure_all(plan, files, threads, on_progress)
            _finish_rows(plan, staging)
            vocabularies = _write_vocabularies(plan, staging)
        manifest.complete()
        return _describe(plan, manifest, files.written, vocabularies)


def _require_planned(plan: ExportPlan, manifest: Manifest) -> None:
    """Refuse a folder with files that this export does not have: trainers read whatever lies there."""
    place_of = {int(kept): i for i, kept in enumerate(plan.kept)}
    for entry in manifest.entries.values():
        i = place_of.get(entry.kept, -1)
        if i < 0 or plan.place(i) != entry.file:
            raise ExportError(
                f"{plan.folder} has {entry.file} of row {entry.row}, which has another place in this export, or none; "
                "give another folder, or the rows that it was made with"
            )


def _ensure_all(plan: ExportPlan, files: RowFiles, threads: int, on_progress: OnProgress | None) -> None:
    rows = (int(i) for i in order_of(plan.hashes))  # about as they lie in packs
    done = 0
    for num_tokens in _each(files.ensure, rows, threads):
        done += num_tokens
        if on_progress is not None:
            on_progress(done, plan.num_tokens)


def _each(work: Callable[[int], int], items: Iterable[int], threads: int) -> Iterator[int]:
    """Give the results of `work` on threads, as they come; the first error ends it."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="export")
    pending: set[Future[int]] = set()
    try:
        for item in items:
            if len(pending) >= _AHEAD * threads:
                finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in finished)
            pending.add(pool.submit(work, item))
        while pending:
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in finished)
    finally:
        pool.shutdown(cancel_futures=True)


def _finish_rows(plan: ExportPlan, staging: Path) -> None:
    """Bring the names of the files to disk, and write what the format needs beside them."""
    for folder in {(plan.folder / plan.place(i)).parent for i in range(len(plan.kept))}:
        sync_folder(folder)
    if plan.form.write_rows is not None:
        folder = staging / "more"
        folder.mkdir()
        for file in plan.form.write_rows(folder, plan.tokens, plan.kept):
            _publish(file, plan.folder / file.name)


def _write_vocabularies(plan: ExportPlan, staging: Path) -> list[Path]:
    """Write the draft vocabularies that the store has of these tokens."""
    found = list(read_draft_vocabularies(plan.store.path, plan.tokens.digest))
    places = []
    for vocabulary in found:
        folder = staging / f"vocabulary-{len(vocabulary.d2t)}"
        for file in plan.form.write_vocabulary(folder, vocabulary, len(found) == 1):
            places.append(plan.folder / file.relative_to(folder))
            _publish(file, places[-1])
    return places


def _publish(file: Path, place: Path) -> None:
    make_folder(place.parent)
    sync_tree(file.parent)
    file.replace(place)
    sync_folder(place.parent)


@contextmanager
def _staging(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside the files, whatever a killed process left there; the manifest is locked by us."""
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _describe(plan: ExportPlan, manifest: Manifest, written: int, vocabularies: list[Path]) -> ExportInfo:
    return ExportInfo(
        folder=plan.folder,
        rows=len(plan.kept),
        written=written,
        present=len(plan.kept) - written,
        missing=plan.num_missing,
        bytes=sum(entry.bytes for entry in manifest.entries.values()),
        layers=plan.choice.aux,
        owner_ids=plan.form.owner_ids(plan.choice),
        last=plan.choice.last,
        norm=plan.choice.norm,
        vocabularies=vocabularies,
    )
