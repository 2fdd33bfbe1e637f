"""Runs in a notebook: whether this is one, its progress as bars, and results as HTML."""

import contextvars
import html
import importlib
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_DRAW_SECONDS = 0.25
_BAR = (
    '<div style="width:16em;height:.7em;background:#8883;border-radius:.35em;display:inline-block">'
    '<div style="width:{percent:.1f}%;height:100%;background:#2a7de1;border-radius:.35em"></div></div>'
)


def is_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def pairs_as_html(title: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Return pairs of label and text as a table."""
    rows = (
        f'<tr><th style="text-align:left">{html.escape(label)}</th>'
        f'<td style="text-align:left;overflow-wrap:anywhere">{html.escape(text)}</td></tr>'
        for label, text in pairs
    )
    return f"<b>{html.escape(title)}</b><table>{''.join(rows)}</table>"


@dataclass
class _Phase:
    name: str
    total: int | None
    unit: str
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None

    def as_html(self) -> str:
        share = min(1.0, self.done / self.total) if self.total else float(self.ended is not None)
        rate = self.done / max((self.ended or time.monotonic()) - self.started, 1e-3)
        total = f" of {self.total:,}" if self.total else ""
        cells = (html.escape(self.name), _BAR.format(percent=100 * share), f"{self.done:,}{total} {self.unit}")
        return "<tr>" + "".join(f"<td>{cell}</td>" for cell in (*cells, f"{rate:,.0f}/s")) + "</tr>"


class NotebookProgress:
    """A bar a phase and the last note, below the cell that runs; each change is drawn at most four times a second."""

    def __init__(self) -> None:
        display: Any = importlib.import_module("IPython.display")  # only a notebook has it
        self._make = display.HTML
        self._phases: list[_Phase] = []
        self._note = ""
        self._lock = threading.Lock()
        self._drawn_at = 0.0
        self._handle: Any = display.display(display.HTML(""), display_id=True)
        # Engines report on threads, where a kernel would not know to which cell it belongs.
        self._context = contextvars.copy_context()

    def start_phase(self, name: str, total: int | None = None, unit: str = "tokens") -> None:
        """Add a bar; the one before is done."""
        with self._lock:
            self._end_phase()
            self._phases.append(_Phase(name, total, unit))
            self._draw()

    def advance(self, amount: int, stored_bytes: int = 0) -> None:  # noqa: ARG002 - the bar shows no bytes
        """Move the bar."""
        with self._lock:
            if not self._phases:
                return
            phase = self._phases[-1]
            phase.done += amount
            if phase.done == phase.total:
                self._end_phase()
            if phase.ended or time.monotonic() - self._drawn_at > _DRAW_SECONDS:
                self._draw()

    def note(self, text: str) -> None:
        """Show the text below the bars, in the place of the one before."""
        with self._lock:
            self._note = text
            self._draw()

    def _end_phase(self) -> None:
        if self._phases and self._phases[-1].ended is None:
            self._phases[-1].ended = time.monotonic()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        rows = "".join(phase.as_html() for phase in self._phases)
        page = self._make(f"<table>{rows}</table><div>{html.escape(self._note)}</div>")
        self._context.run(self._handle.update, page)
