"""The task export: states of a store as files that a trainer reads."""

from prefect import task

from tasks.policy import RETRY_WHAT_MAY_PASS, STORE_IS_THE_CACHE
from tasks.trainer_files.exporter import ExportInfo, OnProgress, export_rows
from tasks.trainer_files.requests import ExportRequest, make_export_plan


def export_samples(
    request: ExportRequest, *, threads: int | None = None, on_progress: OnProgress | None = None
) -> ExportInfo:
    """Write the files that are asked for; those that are there and right stay.

    Args:
        request: what is asked for.
        threads: that read, decode and write; by default two a core, at most 16.
        on_progress: called with the tokens of the rows done and of all.
    """
    return export_rows(make_export_plan(request), threads=threads, on_progress=on_progress)


export = task(name="export", **RETRY_WHAT_MAY_PASS, **STORE_IS_THE_CACHE)(export_samples)
