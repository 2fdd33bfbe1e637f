"""What a run shows while it goes on: progress and tables as artifacts of its flow run.

A thread of its own tells the server every two seconds what has changed, so that a slow server, or one that is away,
keeps nobody from work. What it missed it is told at the end.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.logging import get_logger

from flows.artifacts import Table
from flows.progress import current_progress, format_bytes

_POST_SECONDS = 2.0
# As long as Prefect's client waits for a server before a run's last state is lost, about.
_LAST_WORD_SECONDS = 600.0


@dataclass
class Card:
    """One artifact: what it is to show, and what the server has of it."""

    key: str
    kind: str
    data: Any
    description: str
    is_posted: bool = False
    id: UUID | None = None


class Board:
    """The artifacts of one flow run, and a `Progress` that shows each phase as one that moves."""

    def __init__(self, flow_run_id: UUID | None) -> None:
        self._flow_run_id = flow_run_id
        self._cards: dict[str, Card] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._begin("", None, "")
        self._thread = threading.Thread(target=self._keep_posting, name="artifacts", daemon=True)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Post what changes within, and all that is left at the end."""
        self._thread.start()
        patience = 0.0  # a run that was stopped waits for nobody
        try:
            yield
            patience = _LAST_WORD_SECONDS
        except Exception:
            patience = _LAST_WORD_SECONDS
            raise
        finally:
            self._closed.set()
            self._thread.join()
            self._post_within(patience)

    def put_table(self, key: str, table: Table, description: str) -> None:
        """Show a table in the place of the one with this key."""
        self._put(key, "table", json.dumps(table), description)

    def put_text(self, key: str, text: str, description: str) -> None:
        """Show Markdown in the place of the one with this key."""
        self._put(key, "markdown", text, description)

    def put_image(self, key: str, url: str, description: str) -> None:
        """Show an image, which may be a `data:` URL, in the place of the one with this key."""
        self._put(key, "image", url, description)

    def start_phase(self, name: str, total: int | None = None, unit: str = "tokens") -> None:
        """Begin the bar of a phase; the one before is full."""
        self._finish_phase()
        self._begin(name, total, unit)
        self._move()

    def advance(self, amount: int, stored_bytes: int = 0) -> None:
        """Move the bar."""
        self._done += amount
        self._stored_bytes += stored_bytes
        self._move()

    def note(self, text: str) -> None:  # noqa: ARG002 - notes are in the log
        """Say nothing; loading a model is no part of the rate."""
        if not self._done:
            self._started = time.monotonic()

    def _begin(self, name: str, total: int | None, unit: str) -> None:
        self._name, self._total, self._unit = name, total, unit
        self._done = self._stored_bytes = 0
        self._started = time.monotonic()

    def _move(self) -> None:
        if self._name:
            share = 100.0 * self._done / self._total if self._total else 0.0
            self._put(self._key(), "progress", round(min(share, 100.0), 1), self._describe())

    def _finish_phase(self) -> None:
        if self._name and not self._total:
            self._put(self._key(), "progress", 100.0, self._describe())

    def _key(self) -> str:
        return f"progress-{self._name.replace(' ', '-')}"

    def _describe(self) -> str:
        total = f" of {self._total:,}" if self._total else ""
        rate = self._done / max(time.monotonic() - self._started, 1e-3)
        stored = f", {format_bytes(self._stored_bytes)} stored" if self._stored_bytes else ""
        return f"{self._name}: {self._done:,}{total} {self._unit}, {rate:,.0f} {self._unit}/s{stored}"

    def _put(self, key: str, kind: str, data: Any, description: str) -> None:
        with self._lock:
            card = self._cards.setdefault(key, Card(key, kind, data, description))
            card.data, card.description, card.is_posted = data, description, False

    def _keep_posting(self) -> None:
        while not self._closed.wait(_POST_SECONDS):
            self._post_all()

    def _post_within(self, seconds: float) -> None:
        """Post what is left, again and again while the server is away."""
        until = time.monotonic() + seconds
        pause = 1.0
        while not self._post_all() and time.monotonic() < until:
            if pause == 1.0:
                current_progress(get_logger("flow_runs").warning).note(
                    f"Prefect's server does not answer; the run is over, and waits for it for up to {seconds:,.0f} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, 15.0)

    def _post_all(self) -> bool:
        """Tell the server of every card that has changed; whether it took all."""
        with self._lock:
            changed = [card for card in self._cards.values() if not card.is_posted]
        try:
            for card in changed:
                self._post(card)
        except httpx.HTTPError:  # away, or too slow: there is a next time
            return False
        return True

    def _post(self, card: Card) -> None:
        with self._lock:
            card.is_posted = True
            data, description = card.data, card.description
        try:
            # A new client: one that has been answered before would wait for minutes for a server that has gone.
            with get_client(sync_client=True) as client:
                if card.id is None:
                    card.id = client.create_artifact(
                        ArtifactCreate(
                            key=card.key,
                            type=card.kind,
                            description=description,
                            data=data,
                            flow_run_id=self._flow_run_id,
                        )
                    ).id
                else:
                    client.update_artifact(card.id, ArtifactUpdate(data=data, description=description))
        except httpx.HTTPError as error:
            card.is_posted = isinstance(error, httpx.HTTPStatusError) and not error.response.is_server_error
            if not card.is_posted:  # else it was refused, and would be again
                raise
