"""Flows over a store that exists: validate it, compact it, free what nobody needs."""

from prefect import flow, get_run_logger

from flows.prefect_defaults import tie_server
from flows.progress import Counting, current_progress
from flows.store_field import StoreField
from storage.file_checks import check_header
from storage.findings import CheckReport
from storage.garbage import Garbage
from storage.packs import PackInfo
from storage.paths import StorePath
from storage.store import find_spec, spec_digests
from tasks.compaction import compact
from tasks.garbage import collect
from tasks.validation import validate, validate_files

tie_server()


@flow(name="validate-store", flow_run_name="validate {store.name}", persist_result=False)
def validate_store(
    store: StoreField,
    spec_digest: str | None = None,
    *,
    fraction: float = 1.0,
    threads: int | None = None,
    repair: bool = False,
) -> CheckReport:
    """Check a store: header, specs, tokens artifacts, and the samples of all specs or of one.

    Args:
        store: the store's folder.
        spec_digest: only these states, a unique prefix will do, and not the rest of the store.
        fraction: share of the samples to check, chosen by their hashes: always the same ones.
        threads: that read and decode; one a core by default.
        repair: set aside what is bad, so that the next run makes it anew.

    Raises:
        StorageError: there is no such store or spec, or (repair) it cannot be written.
    """
    progress = current_progress(get_run_logger().info)
    report = CheckReport()
    if spec_digest is None:
        report.add(validate_files(store, set_aside=repair, on_progress=Counting(progress, "validate", "files")))
    for digest in _sound_specs(store, spec_digest, report):
        on_progress = Counting(progress, "validate", "samples")
        part = validate(store, digest, fraction=fraction, threads=threads, set_aside=repair, on_progress=on_progress)
        report.add(part)
    return report


def _sound_specs(store: StorePath, spec_digest: str | None, report: CheckReport) -> list[str]:
    """Choose the specs whose samples can be checked; no state is looked at: a damaged pack is what this is for."""
    if spec_digest is not None:
        return [find_spec(store, spec_digest)]
    if any(finding.where == "header" for finding in report.findings) and check_header(store):
        return []
    bad = {finding.digest for finding in report.findings if finding.where == "spec"}
    return [digest for digest in spec_digests(store) if digest not in bad]


@flow(name="compact-store", flow_run_name="compact {store.name}", persist_result=False)
def compact_store(store: StoreField, spec_digest: str | None = None) -> PackInfo | None:
    """Copy the loose objects of one spec into packs, and many small packs into one; None when there is nothing to do.

    Args:
        store: the store's folder.
        spec_digest: which states, a unique prefix will do; may be left out when the store has one spec.

    Raises:
        StorageError: there is no such store or spec, or it cannot be written.
    """
    progress = current_progress(get_run_logger().info)
    return compact(
        store,
        find_spec(store, spec_digest),
        on_progress=Counting(progress, "compact", "samples"),
        on_merge=Counting(progress, "merge packs", "samples"),
    )


@flow(name="collect-garbage", flow_run_name="gc {store.name}", persist_result=False)
def collect_garbage(store: StoreField, *, older_than_seconds: float | None = None, dry_run: bool = True) -> Garbage:
    """Find what nobody needs in a store, and free it unless `dry_run`.

    Args:
        store: the store's folder.
        older_than_seconds: take also staging of other hosts in which nothing has changed for so long.
        dry_run: only look.

    Raises:
        StorageError: there is no such store, a part of it is damaged, or it cannot be written.
    """
    progress = current_progress(get_run_logger().info)
    on_progress = Counting(progress, "copy what is kept", "samples")
    return collect(store, older_than_seconds=older_than_seconds, is_dry=dry_run, on_progress=on_progress)
