"""Validate: read back what was written and set aside what is bad."""

from collections.abc import Callable, Collection
from pathlib import Path

from prefect import task

from storage.checks import CheckReport, check_store, repair
from tasks.policy import STORE_IS_THE_CACHE


def validate_samples(
    store: Path,
    spec_digest: str,
    *,
    hashes: Collection[str] | None = None,
    threads: int = 2,
    set_aside: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> CheckReport:
    """Check samples of one spec in full: structure, checksums, hashes, row counts, finite and non-zero rows.

    Args:
        store: the store.
        spec_digest: which states.
        hashes: only these samples; None is all.
        threads: readers.
        set_aside: move what is bad out of the way, so that the next run computes it again.
        on_progress: called with samples checked and samples in all.
    """
    report = check_store(store, spec_digest, hashes=hashes, threads=threads, on_progress=on_progress)
    if set_aside and report.findings:
        repair(store, spec_digest, report.findings)
    return report


validate = task(name="validate", **STORE_IS_THE_CACHE)(validate_samples)
