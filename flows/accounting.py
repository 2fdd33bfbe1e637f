"""The ledger of a run: every row of the data, and every sample of one that was split, ends in exactly one column."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flows.progress import Progress
from storage.findings import Finding
from tasks import messages
from tasks.engine_counts import EngineCounts
from tasks.errors import TooManyQuarantinedError
from tasks.planning import Plan


@dataclass
class Ledger:
    """Counts of one run, fed by the engine processes' messages on any thread.

    Attributes:
        max_quarantined: samples set aside before the run stops: a share of those to compute below 1, else a count.
        split: samples beyond the first of rows that became several.
        rejected: rows without token ids, by reason.
        truncated: kept rows that were cut to the longest length.
        spoilt: samples that the store had by the plan, and that turned out to be damaged.
        found: hashes of samples that were in the store when their turn came.
        done: hash -> tokens of samples that this run computed and committed.
        quarantined: hash -> (reason, detail) of samples set aside.
        seconds: time by phase.
        engines: what each engine has done.
    """

    progress: Progress
    max_quarantined: float = 0.05
    rows_in: int = 0
    split: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    plan: Plan | None = None
    spoilt: int = 0
    found: set[str] = field(default_factory=set)
    done: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, tuple[str, str]] = field(default_factory=dict)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    engines: list[EngineCounts] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_event(self, message: messages.Message) -> None:
        """Take in what an engine process says."""
        with self._lock:
            if isinstance(message, messages.Committed):
                self._commit(message)
            elif isinstance(message, messages.Quarantined):
                self._quarantine(message)
            elif isinstance(message, messages.Phase):
                name = f"engine {message.engine}" if len(self.engines) > 1 else "engine"
                self.progress.note(f"{name}: {message.name}")

    def add_unit(self, unit: messages.UnitDone) -> None:
        """Add the engine's own times of one unit."""
        self.seconds["forward"] += unit.forward_seconds
        self.seconds["wait"] += unit.wait_seconds

    def set_aside(self, findings: list[Finding]) -> None:
        """Move samples that failed validation from done, or from those that the store had, to quarantined."""
        for finding in findings:
            if finding.sample_hash is None:  # a damaged pack index names no sample
                continue
            self._take_out(finding.sample_hash)
            self.quarantined[finding.sample_hash] = (finding.reason, finding.detail)

    def rows(self) -> dict[str, int | dict[str, int]]:
        """Return the accounting; `in` plus `split` equals the sum of the rest, always.

        `unfinished` counts rows whose sample an interrupted or failed run did not reach; a completed run has none.
        """
        with self._lock:  # an engine may still have a word to say when a run is interrupted
            return self._count_rows()

    def tokens_done(self) -> int:
        """Return the tokens of the samples that this run computed and committed."""
        with self._lock:
            return sum(self.done.values())

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the time spent within to a phase."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] += time.monotonic() - started

    def _commit(self, message: messages.Committed) -> None:
        if message.sample_hash in self.done or message.sample_hash in self.found:
            return  # told again by the engine that took over from a dead one
        self.quarantined.pop(message.sample_hash, None)  # a second try may have found room that the first had not
        if message.existed:
            self.found.add(message.sample_hash)
        else:
            self.done[message.sample_hash] = message.num_tokens
        self.progress.advance(message.num_tokens, message.stored_bytes)

    def _quarantine(self, message: messages.Quarantined) -> None:
        if message.sample_hash not in self.quarantined:
            self.progress.advance(message.num_tokens)
        self.quarantined[message.sample_hash] = (message.reason, message.detail)
        self._stop_past_limit()

    def _take_out(self, name: str) -> None:
        """Have a sample in no column, for the time being."""
        if name in self.quarantined:  # of two copies of it both are bad
            return
        if self.done.pop(name, None) is None and name not in self.found:
            self.spoilt += 1
        self.found.discard(name)

    def _stop_past_limit(self) -> None:
        """End a run that sets aside too much: something is wrong with more than its samples."""
        samples = len(self.plan.missing) if self.plan else 0
        limit = self.max_quarantined * samples if self.max_quarantined < 1 else self.max_quarantined
        count = len(self.quarantined)
        if count > max(limit, 1.0 if self.max_quarantined else 0.0):
            reason, detail = next(reversed(self.quarantined.values()))
            raise TooManyQuarantinedError(
                f"{count} of {samples} samples were set aside, the limit is {limit:g} (the last: {reason}, {detail}); "
                "find the cause, or raise max_quarantined"
            )

    def _count_rows(self) -> dict[str, int | dict[str, int]]:
        reused = (self.plan.reused if self.plan else 0) - self.spoilt + len(self.found)
        duplicate = self.plan.duplicates if self.plan else 0
        quarantined = dict(Counter(reason for reason, _ in self.quarantined.values()))
        settled = len(self.done) + reused + duplicate + sum(self.rejected.values()) + len(self.quarantined)
        return {
            "in": self.rows_in,
            "split": self.split,
            "done": len(self.done),
            "reused": reused,
            "duplicate": duplicate,
            "rejected": self.rejected,
            "quarantined": quarantined,
            "unfinished": self.rows_in + self.split - settled,
        }
