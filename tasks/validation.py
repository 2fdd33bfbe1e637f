"""Validate: read back what was written and set aside what is bad."""

from collections.abc import Callable, Collection

from prefect import task

from storage.checks import check_store
from storage.file_checks import check_files, check_header
from storage.findings import CheckReport
from storage.paths import StorePath
from storage.repairs import repair
from tasks.policy import RETRY_WHAT_MAY_PASS, STORE_IS_THE_CACHE


def validate_samples(
    store: StorePath,
    spec_digest: str,
    *,
    hashes: Collection[str] | None = None,
    fraction: float = 1.0,
    threads: int | None = None,
    set_aside: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Check samples of one spec in full: structure, checksums, hashes, row counts, finite and non-zero rows.

    Args:
        store: the store.
        spec_digest: which states.
        hashes: only these samples; None is all.
        fraction: share of them to check: those with the lowest hashes.
        threads: readers; one a core by default.
        set_aside: move what is bad out of the way, so that the next run computes it again.
        on_progress: called with samples checked and samples in all.
    """
    report = check_store(store, spec_digest, hashes=hashes, fraction=fraction, threads=threads, on_progress=on_progress)
    if set_aside:
        repair(store, report.findings)
    return report


def validate_store_files(
    store: StorePath, *, set_aside: bool = False, on_progress: Callable[[int, int], None] | None = None
) -> CheckReport:
    """Check what a store has beside states: header, specs, tokens artifacts.

    Args:
        store: the store.
        set_aside: as above; a damaged header is written anew.
        on_progress: called with files and artifacts checked and their number.
    """
    findings = check_header(store)
    if not findings or set_aside:
        repair(store, findings)
        findings += check_files(store, on_progress)
    if set_aside:
        repair(store, findings)
    return CheckReport(findings=findings)


validate = task(name="validate", **RETRY_WHAT_MAY_PASS, **STORE_IS_THE_CACHE)(validate_samples)
validate_files = task(name="validate-files", **RETRY_WHAT_MAY_PASS, **STORE_IS_THE_CACHE)(validate_store_files)
