"""What a run shows in Prefect's pages beside its log: tables as rows, texts as Markdown. Pure."""

from collections.abc import Iterable
from typing import Any

from flows.progress import format_bytes
from flows.report import RunReport, summarize
from storage.paths import StorePath
from tasks.engine_counts import EngineCounts

Table = list[dict[str, Any]]

_PLACES = ("store", "report", "rejects", "spec")
_MEANINGS = {
    "in": "rows of the data",
    "split": "further samples of rows that became several",
    "done": "computed and stored by this run",
    "reused": "in the store already",
    "duplicate": "token ids of an earlier row",
    "rejected": "no token ids; rejects.jsonl has each",
    "quarantined": "set aside; the next run tries again",
    "unfinished": "not reached",
}


def accounting_table(rows: dict[str, int | dict[str, int]]) -> Table:
    """Return the accounting of a run, one row a column of it and reason."""
    table: Table = []
    for name, count in rows.items():
        reasons = {name: count} if isinstance(count, int) else {f"{name}: {why}": n for why, n in count.items()}
        table += [{"column": key, "rows": n, "meaning": _MEANINGS.get(name, "")} for key, n in reasons.items()]
    return table


def engines_table(engines: Iterable[EngineCounts]) -> Table:
    """Return what each engine did, one row each."""
    return [
        {
            "device": one.device,
            "tokens": f"{one.tokens:,}",
            "tokens/s": f"{one.tokens / one.busy_seconds:,.0f}" if one.busy_seconds else "-",
            "samples": one.samples,
            "memory": _memory(one.peak_memory_bytes),
            "GPU memory": _memory(one.peak_device_bytes),
            "restarts": one.restarts,
        }
        for one in engines
    ]


def quarantine_table(report: RunReport) -> Table:
    """Return the samples that were set aside, and why."""
    return [dict(entry) for entry in report.quarantined]


def report_text(report: RunReport) -> str:
    """Return the report in brief, with links to where things lie: a page has no room for long paths."""
    heading = f"### {report.status}" + (f": {report.error}" if report.error else "")
    lines = [f"- **{label}**: {text}" for label, text in summarize(report) if label not in _PLACES]
    places = {"store": report.store, "report.json": report.folder / "report.json"}
    links = " · ".join(f"[{name}]({_link(place)})" for name, place in places.items())
    return "\n".join([heading, "", *lines, "", links, "", f"`{report.store}`"])


def _link(place: StorePath) -> str:
    text = str(place)
    return text if "://" in text else f"file://{text}"


def _memory(count: int) -> str:
    return format_bytes(count) if count else "-"
