"""Flows over a store that exists: validate it, compact it."""

from pathlib import Path

from prefect import flow, get_run_logger

from flows.prefect_defaults import tie_server
from flows.progress import Counting, current_progress
from storage.checks import CheckReport
from storage.packs import PackInfo
from storage.store import find_spec
from tasks.compaction import compact
from tasks.validation import validate

tie_server()


@flow(name="validate-store", flow_run_name="validate {store.name}", persist_result=False)
def validate_store(store: Path, spec_digest: str | None = None, *, repair: bool = False) -> CheckReport:
    """Check every sample of one spec of a store.

    Args:
        store: the store's folder.
        spec_digest: which states, a unique prefix will do; may be left out when the store has one spec.
        repair: set bad samples aside, so that the next run computes them again.

    Raises:
        StorageError: there is no such store or spec, or (repair) it cannot be written.
    """
    progress = current_progress(get_run_logger().info)
    found = find_spec(store, spec_digest)  # not opened: a damaged pack is what this is for
    return validate(store, found, set_aside=repair, on_progress=Counting(progress, "validate", "samples"))


@flow(name="compact-store", flow_run_name="compact {store.name}", persist_result=False)
def compact_store(store: Path, spec_digest: str | None = None) -> PackInfo | None:
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
