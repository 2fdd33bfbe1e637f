"""Progress for people: bars on a terminal, plain lines elsewhere, the flow run's log by default."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from flows.notebook import NotebookProgress, is_notebook

_LINE_SECONDS = 10.0
# A rate over less than this says nothing.
_LEAST_SECONDS = 1e-3


class Progress(Protocol):
    """Where a run says what it does."""

    def start_phase(self, name: str, total: int | None = None, unit: str = "tokens") -> None:
        """Begin a phase of `total` units; None when the total is not known."""
        ...

    def advance(self, amount: int, stored_bytes: int = 0) -> None:
        """Count units of the current phase, and bytes that it stored."""
        ...

    def note(self, text: str) -> None:
        """Say one thing that people should see."""
        ...


class LineProgress:
    """Plain lines: one at the start of a phase, one every ten seconds, one at its end."""

    def __init__(self, emit: Callable[[str], object]) -> None:
        self._emit = emit
        self._begin("", None, "")

    def start_phase(self, name: str, total: int | None = None, unit: str = "tokens") -> None:
        """Close the phase before and begin one."""
        if self._done > self._told:
            self._tell()
        self._begin(name, total, unit)
        self._emit(name if total is None else f"{name}: {total:,} {unit}")

    def advance(self, amount: int, stored_bytes: int = 0) -> None:
        """Count; tell when ten seconds have passed and at the end."""
        self._done += amount
        self._stored_bytes += stored_bytes
        if self._done == self._total or time.monotonic() - self._told_at > _LINE_SECONDS:
            self._tell()

    def note(self, text: str) -> None:
        """Print the line."""
        self._emit(text)
        if not self._done:  # loading the model is no part of the rate
            self._started = time.monotonic()

    def _begin(self, name: str, total: int | None, unit: str) -> None:
        self._phase, self._total, self._unit = name, total, unit
        self._done = self._told = self._stored_bytes = 0
        self._started = self._told_at = time.monotonic()

    def _tell(self) -> None:
        self._told, self._told_at = self._done, time.monotonic()
        total = "" if self._total is None else f" of {self._total:,} {self._unit}"
        parts = [f"{self._done:,}{total}", *self._describe_rate(self._told_at - self._started)]
        if self._stored_bytes:
            parts.append(f"{format_bytes(self._stored_bytes)} stored")
        self._emit(f"{self._phase}: {', '.join(parts)}")

    def _describe_rate(self, seconds: float) -> list[str]:
        if seconds < _LEAST_SECONDS:
            return []
        rate, left = self._done / seconds, (self._total or 0) - self._done
        return [f"{rate:,.0f} {self._unit}/s", *([f"{left / rate:,.0f} s left"] if left > 0 and rate else [])]


class Together:
    """Several places at once."""

    def __init__(self, *places: Progress) -> None:
        self._places = places

    def start_phase(self, name: str, total: int | None = None, unit: str = "tokens") -> None:
        """Begin a phase everywhere."""
        for place in self._places:
            place.start_phase(name, total, unit)

    def advance(self, amount: int, stored_bytes: int = 0) -> None:
        """Count everywhere."""
        for place in self._places:
            place.advance(amount, stored_bytes)

    def note(self, text: str) -> None:
        """Say it everywhere."""
        for place in self._places:
            place.note(text)


class BarProgress:
    """One live bar with phase, rate, bytes and time left; use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._rich = RichProgress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=28),
            _Amount(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=False,
        )
        self._task: int | None = None

    def __enter__(self) -> Self:
        self._rich.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._rich.stop()

    def start_phase(self, name: str, total: int | None = None, unit: str = "tokens") -> None:
        """Finish the bar before and begin one."""
        if self._task is not None:
            self._finish()
        self._task = self._rich.add_task(name, total=total, unit=unit, stored_bytes=0)

    def advance(self, amount: int, stored_bytes: int = 0) -> None:
        """Move the bar."""
        if self._task is None:
            return
        task = self._rich.tasks[self._task]
        self._rich.update(task.id, advance=amount, stored_bytes=task.fields["stored_bytes"] + stored_bytes)

    def note(self, text: str) -> None:
        """Print above the bars."""
        self._rich.console.print(text, highlight=False)

    def _finish(self) -> None:
        task = self._rich.tasks[self._task or 0]
        total = task.total if task.total is not None else max(task.completed, 1)
        self._rich.update(task.id, total=total, completed=total)


class _Amount(ProgressColumn):
    """`12,345/40,000 tokens 376/s 12.3 MB`."""

    def render(self, task: Task) -> Text:
        """Write the amount of one bar."""
        unit, stored = task.fields["unit"], task.fields["stored_bytes"]
        total = f"/{task.total:,.0f}" if task.total else ""
        rate = task.finished_speed or task.speed
        parts = [f"{task.completed:,.0f}{total} {unit}"] if task.completed or total else []
        parts += [f"{rate:,.0f}/s"] if rate else []
        parts += [format_bytes(stored)] if stored else []
        return Text("  ".join(parts))


class Counting:
    """A phase that begins with the first `(done, total)` call, so that one with nothing to do says nothing."""

    def __init__(self, progress: Progress, name: str, unit: str) -> None:
        self._progress = progress
        self._name, self._unit = name, unit
        self._done: int | None = None

    def __call__(self, done: int, total: int) -> None:
        """Move the phase to `done`."""
        if self._done is None:
            self._progress.start_phase(self._name, total, self._unit)
        self._progress.advance(done - (self._done or 0))
        self._done = done


def format_count(count: int, noun: str) -> str:
    """Write a count with its noun: 1 sample, 2,000 samples."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_bytes(count: float) -> str:
    """Write bytes for people: 12.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:  # noqa: PLR2004 - SI prefixes
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


_current: ContextVar[Progress | None] = ContextVar("progress", default=None)


def current_progress(default: Callable[[str], object]) -> Progress:
    """Return what `showing` set, else plain lines to `default`."""
    return _current.get() or LineProgress(default)


def run_progress(log: Callable[[str], object], *others: Progress) -> Progress:
    """Return the progress of a flow run: plain lines to its log, what `showing` set or a notebook has, and others."""
    shown = _current.get() or (NotebookProgress() if is_notebook() else None)
    return Together(LineProgress(log), *([shown] if shown else []), *others)


@contextlib.contextmanager
def showing(progress: Progress) -> Iterator[None]:
    """Have the flows called within show their progress here."""
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)
