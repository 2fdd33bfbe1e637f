"""The report of a run: machine-readable, exact, left in the store."""

import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.notebook import pairs_as_html
from flows.progress import format_bytes
from flows.store_field import StoreField
from storage.errors import StoreNotFoundError
from storage.files import clear_errors, replace_file
from storage.layout import tokens_folder
from storage.paths import StorePath
from storage.store import Store, open_store, spec_digests
from storage.tokens import REJECTS, Tokens, open_tokens
from tasks.engine_counts import EngineCounts
from tasks.state_summaries import StatesSummary
from tasks.token_summaries import TokensSummary

ENGINE_PHASES = {"forward": "forward", "wait": "waited for the writing"}

Status = Literal["completed", "failed", "interrupted"]


class StoreBytes(BaseModel):
    """Size of all states of a spec in the store: `raw` in the storage dtype, `stored` as files on disk."""

    model_config = ConfigDict(frozen=True)

    raw: int
    stored: int
    ratio: float | None = Field(description="raw / stored; null while nothing is stored")


class RunReport(BaseModel):
    """What one run did.

    Attributes:
        rows: `{in, split, done, reused, duplicate, rejected: {reason: n}, quarantined: {reason: n}, unfinished}`; `in`
            plus `split` equals the sum of the rest, always. `unfinished` is 0 in a completed run.
        truncated: rows that were cut to the longest length (`too_long = truncate`); they count among the rows above.
        tokens: tokens of the run's distinct samples.
        tokens_computed: tokens that this run ran through the model.
        data: what the kept rows are: how many tokens are learnt, histograms of lengths and masks, a digest that the
            order of rows does not change; null when the run ended before they were tokenized.
        bytes: size of the spec's states in the store at the end of the run.
        seconds: by phase, wall time; but `forward` and `wait` are sums over the engines: time in the model, and time in
            which an engine's device had nothing to do because states waited to be written.
        states: what the states are like, layer by layer, of some that this run wrote, or else of some that it found;
            null where there are none, and of a run that did not complete.
        quarantined: hash, reason and detail of each sample set aside.
        model: the folder or the Hub id, as it was given.
        revision: the model's Hub revision; null where it does not lie in the Hub's cache.
        host: the machine that wrote this; of a run on several nodes, the one that handed out the work.
        settings: all settings of the run; null in a report of an older version.
        engines: what each engine did; empty when there was nothing to compute; on several nodes, `<host>:<device>`.
        tokens_digest: names the tokens artifact; null when the run ended before there was one.
    """

    model_config = ConfigDict(frozen=True)

    run_id: str
    status: Status
    error: str | None
    started: datetime
    finished: datetime
    store: StoreField
    rows: dict[str, int | dict[str, int]]
    truncated: int
    tokens: int
    tokens_computed: int
    data: TokensSummary | None
    bytes: StoreBytes
    seconds: dict[str, float]
    model: str
    revision: str | None
    host: str
    settings: dict[str, Any] | None = None
    spec: dict[str, Any]
    spec_digest: str
    tokens_digest: str | None
    states: StatesSummary | None = None
    quarantined: list[dict[str, str]]
    engines: list[EngineCounts]

    @property
    def folder(self) -> StorePath:
        """Where the report and the engine logs lie."""
        return run_folder(self.store, self.run_id)

    def count_quarantined(self) -> dict[str, int]:
        """Return how many samples were set aside, by reason."""
        return _reasons(self.rows["quarantined"])

    def one_line(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":"))

    def write(self) -> StorePath:
        """Write `report.json` into the run's folder, whole or not at all.

        Raises:
            StorageError: the store cannot be written.
        """
        path = self.folder / "report.json"
        text = json.dumps(self.model_dump(mode="json"), indent=2) + "\n"
        with clear_errors(path):
            replace_file(path, text.encode())
        return path


@dataclass(frozen=True)
class RunResult:
    """What a flow call gives back: the report, and the store ready to read."""

    report: RunReport

    @property
    def store(self) -> Store:
        """The states of this run's spec."""
        return open_store(self.report.store, self.report.spec_digest)

    @property
    def tokens(self) -> Tokens:
        """The run's token ids and loss masks, one entry a row of the data that was kept."""
        tokens = open_tokens(self.report.store, self.report.tokens_digest or "")
        if tokens is None:
            raise StoreNotFoundError(f"tokens artifact {self.report.tokens_digest} is gone from {self.report.store}")
        return tokens

    def _repr_html_(self) -> str:
        return pairs_as_html(f"Run {self.report.status}", summarize(self.report))

    def __repr__(self) -> str:
        lines = [f"{name:<12} {value}" for name, value in summarize(self.report)]
        return "\n".join([f"RunResult({self.report.status})", *lines])


def summarize(report: RunReport) -> list[tuple[str, str]]:
    """Return the report as pairs of label and text, for people."""
    rows = report.rows
    counts = [f"{total(rows[name])} {name}" for name in rows if name not in ("in", "split") and total(rows[name])]
    split = f" + {rows['split']} split" if rows["split"] else ""
    reasons = [f"{n} {reason}" for key in ("rejected", "quarantined") for reason, n in _reasons(rows[key]).items()]
    size = report.bytes
    pairs = [
        ("rows", f"{rows['in']}{split} = {' + '.join(counts) or '0'}"),
        ("tokens", f"{report.tokens:,} ({report.tokens_computed:,} computed now)"),
        *_describe_data(report.data),
        ("layers", ", ".join(str(layer) for layer in report.spec["layers"])),
        ("states", f"{format_bytes(size.raw)} raw, {format_bytes(size.stored)} stored"),
        ("ratio", "-" if size.ratio is None else f"{size.ratio:.2f}"),
        ("time", _describe_seconds(report.seconds)),
        ("store", str(report.store)),
        ("spec", report.spec_digest),
        ("report", str(report.folder / "report.json")),
    ]
    rejects = tokens_folder(report.store, report.tokens_digest or "") / REJECTS if total(rows["rejected"]) else ""
    notes = [("reasons", ", ".join(reasons)), ("rejects", f"{rejects}"), ("truncated", f"{report.truncated or ''}")]
    notes += [("revision", report.revision or "")]
    return [*pairs[:1], *((label, text) for label, text in notes if text), *pairs[1:]]


def measure_states(path: StorePath, spec_digest: str) -> StoreBytes:
    """Measure all states of a spec; a run that ended before it computed any has left no spec."""
    if spec_digest not in spec_digests(path):
        return StoreBytes(raw=0, stored=0, ratio=None)
    return measure_store(open_store(path, spec_digest))


def measure_store(store: Store) -> StoreBytes:
    """Measure all states of the store's spec."""
    raw, stored = store.num_tokens() * store.spec.bytes_per_token, store.stored_bytes()
    return StoreBytes(raw=raw, stored=stored, ratio=round(raw / stored, 4) if stored else None)


def new_run_id(now: datetime) -> str:
    """Return a name that sorts by time and is unique over hosts: 20261129T150000Z-1a2b3c."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def run_folder(store: StorePath, run_id: str) -> StorePath:
    """Return the folder of one run's report and logs."""
    return store / "runs" / run_id


def _describe_data(data: TokensSummary | None) -> list[tuple[str, str]]:
    if data is None:
        return []
    return [("learnt", f"{data.supervised_tokens:,} of {data.tokens:,} tokens in {data.samples:,} samples")]


def _describe_seconds(seconds: dict[str, float]) -> str:
    """Write the phases; `forward` and `wait` are parts of `extract`, summed over the engines."""
    parts = ", ".join(f"{label} {seconds[name]:.1f} s" for name, label in ENGINE_PHASES.items() if name in seconds)
    phases = [f"{name} {value:.1f} s" for name, value in seconds.items() if name not in ENGINE_PHASES]
    return ", ".join(f"{text} ({parts})" if parts and text.startswith("extract") else text for text in phases)


def _reasons(value: int | dict[str, int]) -> dict[str, int]:
    return value if isinstance(value, dict) else {}


def total(value: int | dict[str, int]) -> int:
    """Return the number of rows of a column of the accounting, whatever the reasons."""
    return sum(value.values()) if isinstance(value, dict) else value
