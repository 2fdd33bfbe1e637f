"""Flows over a store that exists: validate it, compact it, export it, free what nobody needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

from prefect import get_run_logger, runtime
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from flows.board import Board
from flows.checked_flow import checked_flow
from flows.form import STORE_PATTERN, titled
from flows.prefect_defaults import tie_server
from flows.presence import present
from flows.progress import Counting, Progress, run_progress
from flows.secret_block import secret_environment
from flows.store_field import StoreField
from storage.file_checks import check_header
from storage.findings import CheckReport
from storage.garbage import Garbage
from storage.packs import PackInfo
from storage.paths import StorePath
from storage.store import find_spec, spec_digests
from tasks.compaction import compact
from tasks.engine.layers import LAYERS_PATTERN
from tasks.exporting import export
from tasks.garbage import collect
from tasks.trainer_files.exporter import ExportInfo
from tasks.trainer_files.formats import FORMATS
from tasks.trainer_files.plan import Missing
from tasks.trainer_files.requests import ExportRequest
from tasks.validation import validate, validate_files

tie_server()


StorePlace = Annotated[StoreField, titled("Store", pattern=STORE_PATTERN)]
SpecDigest = Annotated[str | None, titled("Spec digest")]
SecretBlock = Annotated[str | None, titled("Secret block")]

# What a run is called that has found damage: the check itself is complete.
FINDINGS = "CompletedWithFindings"


@checked_flow(name="validate-store", flow_run_name="validate {store.name}", persist_result=False)
def validate_store(
    store: StorePlace,
    spec_digest: SpecDigest = None,
    *,
    fraction: Annotated[float, Field(ge=0, le=1), titled("Share of the samples")] = 1.0,
    threads: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, titled("Threads")] = None,
    repair: Annotated[bool, titled("Repair")] = False,
    secret_block: SecretBlock = None,
) -> CheckReport:
    """Check a store: header, specs, tokens artifacts, and the samples of all specs or of one.

    Args:
        store: the store's folder.
        spec_digest: only these states, a unique prefix will do, and not the rest of the store.
        fraction: share of the samples to check, chosen by their hashes: always the same ones.
        threads: that read and decode; one a core by default.
        repair: set aside what is bad, so that the next run makes it anew.
        secret_block: of Prefect, with the AWS_* variables of a store in a bucket.

    Raises:
        StorageError: there is no such store or spec, or (repair) it cannot be written.
    """
    options: dict[str, Any] = {"fraction": fraction, "threads": threads, "set_aside": repair}
    with _running(secret_block) as (progress, board):
        report = CheckReport()
        if spec_digest is None:
            report.add(validate_files(store, set_aside=repair, on_progress=Counting(progress, "validate", "files")))
        for digest in _sound_specs(store, spec_digest, report):
            report.add(validate(store, digest, **options, on_progress=Counting(progress, "validate", "samples")))
        if report.findings:
            board.put_table("findings", [vars(finding) for finding in report.findings], "What is bad")
    return _name_findings(report)


def _name_findings(report: CheckReport) -> CheckReport:
    """Have a run that found damage complete by another name, which a flow says by a state."""
    if not report.findings:
        return report
    message = (
        f"{report.checked:,} samples checked, {len(report.findings):,} bad; the first: {report.findings[0].detail}"
    )
    state: State[CheckReport] = Completed(data=report, name=FINDINGS, message=message)
    return cast("CheckReport", state)  # a call gives back the data of a state


def _sound_specs(store: StorePath, spec_digest: str | None, report: CheckReport) -> list[str]:
    """Choose the specs whose samples can be checked; no state is looked at: a damaged pack is what this is for."""
    if spec_digest is not None:
        return [find_spec(store, spec_digest)]
    if any(finding.where == "header" for finding in report.findings) and check_header(store):
        return []
    bad = {finding.digest for finding in report.findings if finding.where == "spec"}
    return [digest for digest in spec_digests(store) if digest not in bad]


@checked_flow(name="compact-store", flow_run_name="compact {store.name}", persist_result=False)
def compact_store(
    store: StorePlace, spec_digest: SpecDigest = None, *, secret_block: SecretBlock = None
) -> PackInfo | None:
    """Copy the loose objects of one spec into packs, and many small packs into one; None when there is nothing to do.

    Args:
        store: the store's folder.
        spec_digest: which states, a unique prefix will do; may be left out when the store has one spec.
        secret_block: of Prefect, with the AWS_* variables of a store in a bucket.

    Raises:
        StorageError: there is no such store or spec, or it cannot be written.
    """
    with _running(secret_block) as (progress, _):
        return compact(
            store,
            find_spec(store, spec_digest),
            on_progress=Counting(progress, "compact", "samples"),
            on_merge=Counting(progress, "merge packs", "samples"),
        )


@checked_flow(name="export-store", flow_run_name="export {store.name} for {trainer_format}", persist_result=False)
def export_store(  # noqa: PLR0913 - the fields of its form
    store: StorePlace,
    trainer_format: Annotated[str, titled("Format", enum=list(FORMATS))],
    to: Annotated[Path, titled("Folder", pattern="^[/~]")],
    spec_digest: SpecDigest = None,
    *,
    tokens_digest: Annotated[str | None, titled("Tokens digest")] = None,
    layers: Annotated[str | None, titled("Layers", pattern=LAYERS_PATTERN)] = None,
    rows: Annotated[str | None, titled("Rows", pattern=r"^\d*:\d*$")] = None,
    missing: Annotated[Missing, titled("Rows without states")] = "error",
    allow_lossy: Annotated[bool, titled("Allow lossy states")] = False,
    threads: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, titled("Threads")] = None,
    secret_block: SecretBlock = None,
) -> ExportInfo:
    """Write the states of a store as files that a trainer reads; those that are there and right stay.

    Args:
        store: the store's folder.
        trainer_format: name of the format.
        to: folder of the files: empty, or that of an export which was stopped.
        spec_digest: which states, a unique prefix will do; may be left out when the store has one spec.
        tokens_digest: which tokens artifact, likewise.
        layers: those to export, in our ids; by default what the format takes of all that the store has.
        rows: START:STOP, of the rows that the tokens artifact keeps; all by default.
        missing: refuse an export of rows that have no states, or leave those out.
        allow_lossy: export states that are not what the forward gave, to the last bit.
        threads: that read, decode and write; two a core by default.
        secret_block: of Prefect, with the AWS_* variables of a store in a bucket.

    Raises:
        StorageError: there is no such store, states or tokens artifact; or the folder cannot be written.
        TaskError: the store lacks what the format needs, or the folder has no room or holds something else.
    """
    request = ExportRequest(
        store, trainer_format, to, spec_digest, tokens_digest, layers, rows, missing, allow_lossy=allow_lossy
    )
    with _running(secret_block) as (progress, _):
        return export(request, threads=threads, on_progress=Counting(progress, "export", "tokens"))


@checked_flow(name="collect-garbage", flow_run_name="gc {store.name}", persist_result=False)
def collect_garbage(
    store: StorePlace,
    *,
    older_than_seconds: float | None = None,
    dry_run: bool = True,
    secret_block: SecretBlock = None,
) -> Garbage:
    """Find what nobody needs in a store, and free it unless `dry_run`.

    Args:
        store: the store's folder.
        older_than_seconds: take also staging of other hosts in which nothing has changed for so long.
        dry_run: only look.
        secret_block: of Prefect, with the AWS_* variables of a store in a bucket.

    Raises:
        StorageError: there is no such store, a part of it is damaged, or it cannot be written.
    """
    with _running(secret_block) as (progress, _):
        on_progress = Counting(progress, "copy what is kept", "samples")
        return collect(store, older_than_seconds=older_than_seconds, is_dry=dry_run, on_progress=on_progress)


@contextmanager
def _running(secret_block: str | None) -> Iterator[tuple[Progress, Board]]:
    """Give a run its credentials and the places where it shows what it does."""
    board = Board(runtime.flow_run.id)
    with present(runtime.flow_run.id), secret_environment(secret_block), board.shown():
        yield run_progress(get_run_logger().info, board), board
