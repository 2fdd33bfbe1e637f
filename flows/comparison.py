"""Two runs beside each other: what was asked of them that differs, and what each came to. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from flows.artifacts import accounting_table
from flows.report import RunReport
from tasks.engine_counts import EngineCounts
from tasks.state_summaries import LayerSummary

T = TypeVar("T")
Unit = Literal["", "rows", "samples", "tokens", "tokens/s", "s", "bytes", "ratio"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One value of two runs.

    Attributes:
        name: what it is.
        first: of the first run; None where it has none.
        second: of the second.
        unit: of numbers; empty for anything else.
    """

    name: str
    first: Any
    second: Any
    unit: Unit = ""

    @property
    def differs(self) -> bool:
        """Whether the two are not the same."""
        return bool(self.first != self.second)


@dataclass(frozen=True)
class Comparison:
    """Two runs beside each other.

    Attributes:
        runs: id, status, start, model and host of both.
        asked: what differs, by `settings`, `spec` and `tokens`; nothing where all is the same. None: one of the reports
            is from before settings were in it.
        figures: by `rows`, `engines`, `time`, `bytes`, `layers` and `quarantined`: all of them, the same or not.
    """

    runs: list[Pair]
    asked: dict[str, list[Pair] | None] = field(default_factory=dict)
    figures: dict[str, list[Pair]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return it as an object of sections: `{name: [first, second]}` each."""
        sections = {"runs": self.runs, **self.asked, **self.figures}
        return {
            name: None if pairs is None else {pair.name: [pair.first, pair.second] for pair in pairs}
            for name, pairs in sections.items()
        }


def compare_reports(first: RunReport, second: RunReport) -> Comparison:
    """Compare the reports of two runs, of one store or of two."""
    return Comparison(
        runs=_pair(_heading(first), _heading(second)),
        asked={
            "settings": _compare_settings(first, second),
            "spec": _differing(_pair(first.spec, second.spec)),
            "tokens": _differing(_pair(_tokens(first), _tokens(second))),
        },
        figures={
            "rows": _pair(_rows(first), _rows(second), "rows"),
            "engines": list(_compare_engines(first, second)),
            "time": _pair(_round(first.seconds), _round(second.seconds), "s"),
            "bytes": list(_compare_bytes(first, second)),
            "layers": list(_compare_layers(first, second)),
            "quarantined": list(_compare_quarantined(first, second)),
        },
    )


def _heading(report: RunReport) -> dict[str, Any]:
    times = {name: f"{getattr(report, name):%Y-%m-%d %H:%M:%S} UTC" for name in ("started", "finished")}
    return {
        "run": report.run_id,
        "status": report.status,
        **times,
        "error": report.error,
        "store": str(report.store),
        "model": report.model,
        "revision": report.revision,
        "host": report.host,
    }


def _compare_settings(first: RunReport, second: RunReport) -> list[Pair] | None:
    if first.settings is None or second.settings is None:
        return None
    return _differing(_pair(first.settings, second.settings))


def _tokens(report: RunReport) -> dict[str, Any]:
    known = {"artifact": report.tokens_digest, "distinct tokens": report.tokens, "rows cut": report.truncated}
    if report.data is not None:
        known |= {
            "content": report.data.content_digest,
            "samples": report.data.samples,
            "tokens": report.data.tokens,
            "tokens learnt": report.data.supervised_tokens,
        }
    return known


def _rows(report: RunReport) -> dict[str, int]:
    return {row["column"]: row["rows"] for row in accounting_table(report.rows)}


def _compare_engines(first: RunReport, second: RunReport) -> Iterator[Pair]:
    yield Pair("tokens computed", first.tokens_computed, second.tokens_computed, "tokens")
    yield Pair("all engines", _rate_of_run(first), _rate_of_run(second), "tokens/s")
    ours, theirs = ({engine.device: engine for engine in report.engines} for report in (first, second))
    for device in _joined(ours, theirs):
        pair = ours.get(device), theirs.get(device)
        yield _of_both(device, pair, _rate, "tokens/s")
        yield _of_both(f"{device}, memory", pair, lambda one: one.peak_memory_bytes, "bytes")
        yield _of_both(f"{device}, GPU memory", pair, lambda one: one.peak_device_bytes, "bytes")
        yield _of_both(f"{device}, restarts", pair, lambda one: one.restarts)


def _rate(engine: EngineCounts) -> float | None:
    """Return tokens a second of the time in which an engine had work."""
    return round(engine.tokens / engine.busy_seconds, 1) if engine.busy_seconds else None


def _rate_of_run(report: RunReport) -> float | None:
    """Return tokens a second of the whole phase, the model's loading included."""
    seconds = report.seconds.get("extract", 0.0)
    return round(report.tokens_computed / seconds, 1) if report.tokens_computed and seconds else None


def _compare_bytes(first: RunReport, second: RunReport) -> Iterator[Pair]:
    yield Pair("raw", first.bytes.raw, second.bytes.raw, "bytes")
    yield Pair("stored", first.bytes.stored, second.bytes.stored, "bytes")
    yield Pair("ratio", first.bytes.ratio, second.bytes.ratio, "ratio")


def _compare_layers(first: RunReport, second: RunReport) -> Iterator[Pair]:
    ours, theirs = map(_layers, (first, second))
    for layer in _joined(ours, theirs):
        pair = ours.get(layer), theirs.get(layer)
        yield _of_both(f"layer {layer}", pair, lambda one: round(one.ratio, 4), "ratio")
        yield _of_both(f"layer {layer}, median norm", pair, lambda one: float(f"{one.norm[1]:.6g}"))


def _layers(report: RunReport) -> dict[str, LayerSummary]:
    return {str(one.layer): one for one in report.states.layers} if report.states else {}


def _compare_quarantined(first: RunReport, second: RunReport) -> Iterator[Pair]:
    yield from _pair(first.count_quarantined(), second.count_quarantined(), "samples", 0)
    ours, theirs = ({one["sample_hash"] for one in report.quarantined} for report in (first, second))
    yield Pair("samples", len(ours), len(theirs), "samples")
    yield Pair("not in the other run", len(ours - theirs), len(theirs - ours), "samples")


def _pair(first: Mapping[str, Any], second: Mapping[str, Any], unit: Unit = "", absent: Any = None) -> list[Pair]:
    return [Pair(name, first.get(name, absent), second.get(name, absent), unit) for name in _joined(first, second)]


def _of_both(name: str, both: tuple[T | None, T | None], value: Callable[[T], Any], unit: Unit = "") -> Pair:
    """Compare one value of two things, of which one may be missing."""
    first, second = (None if one is None else value(one) for one in both)
    return Pair(name, first, second, unit)


def _differing(pairs: Iterable[Pair]) -> list[Pair]:
    return [pair for pair in pairs if pair.differs]


def _joined(first: Iterable[str], second: Iterable[str]) -> list[str]:
    """Return the names of both, each once, in the order of the first."""
    return list(dict.fromkeys([*first, *second]))


def _round(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in seconds.items()}
