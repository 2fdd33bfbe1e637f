"""A timeline of a run as a Chrome trace: forward, copy, encode, commit, wait; open it in Perfetto or chrome://tracing."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO


class Trace:
    """Appends spans to a file; threads and processes may share it. Without a file every call returns at once.

    The file is the format's array of events without its closing bracket, which readers do not ask for: it can be read
    whatever ends the run.
    """

    def __init__(self, path: Path | None, process: str = "") -> None:
        self._file: BinaryIO | None = None if path is None else path.open("ab", buffering=0)
        self._tracks: dict[str, int] = {}
        self._lock = threading.Lock()
        if self._file is not None:
            self._write({"name": "process_name", "ph": "M", "tid": 0, "args": {"name": process}})

    @property
    def is_kept(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    @contextlib.contextmanager
    def span(self, name: str, track: str | None = None, **details: Any) -> Iterator[None]:
        """Record what is done within, on the track of that name or of this thread's."""
        if self._file is None:
            yield
            return
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, began, time.monotonic() - began, track, **details)

    def add(self, name: str, began: float, seconds: float, track: str | None = None, **details: Any) -> None:
        """Record what began at a time of `time.monotonic` and took so long."""
        if self._file is None:
            return
        tid = self._number(track or threading.current_thread().name)
        self._write({"name": name, "ph": "X", "tid": tid, "ts": began * 1e6, "dur": seconds * 1e6, "args": details})

    def close(self) -> None:
        """Close the file; later spans are not recorded."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _number(self, track: str) -> int:
        with self._lock:
            if track in self._tracks:
                return self._tracks[track]
            number = self._tracks[track] = len(self._tracks) + 1
        self._write({"name": "thread_name", "ph": "M", "tid": number, "args": {"name": track}})
        return number

    def _write(self, event: dict[str, Any]) -> None:
        # One write a line: those of several processes do not mix.
        line = json.dumps({"pid": os.getpid()} | event, separators=(",", ":")) + ",\n"
        with self._lock:
            if self._file is not None:
                self._file.write(line.encode())


def begin_trace(path: Path) -> None:
    """Begin a file anew, to which any number of `Trace` then append.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"[\n")
