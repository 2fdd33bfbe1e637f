"""What of a run deserves a second look, and what to do about it. Pure."""

from collections.abc import Iterator

from flows.progress import format_count
from flows.report import RunReport, total

# Of the time of the engines that they waited for the writing, and of the rows that were rejected.
WAIT_SHARE, REJECTED_SHARE = 0.05, 0.1


def advise(report: RunReport) -> Iterator[str]:
    """Give one sentence a finding."""
    rows, seconds = report.rows, report.seconds
    if report.error:
        yield f"The run {report.status}: {report.error}. What it has stored stays; the same command goes on from there."
    if report.quarantined:
        yield f"{format_count(len(report.quarantined), 'sample')} set aside; run again to try them once more."
    if (rejected := total(rows["rejected"])) > REJECTED_SHARE * total(rows["in"]):
        yield (
            f"{rejected:,} of {total(rows['in']):,} rows were rejected; rejects.jsonl of the tokens artifact says why, "
            "aerie preview shows what becomes of a row."
        )
    if report.truncated:
        yield f"{format_count(report.truncated, 'row')} cut to the longest length; raise max_length to keep them whole."
    if (wait := seconds.get("wait", 0.0)) > WAIT_SHARE * (wait + seconds.get("forward", 0.0)):
        yield (
            f"The engines waited {wait:,.0f} s for the writing: the disk, or the cores that encode, are the limit "
            "(encode_threads, max_in_flight_bytes; docs/performance.md)."
        )
    if restarts := sum(engine.restarts for engine in report.engines):
        yield f"Engines were started again {restarts} times; their logs are beside this page."
