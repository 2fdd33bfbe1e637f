"""The main of a process that encodes: it takes states from shared memory, compresses and commits them, on threads.

Started as `python -m tasks.encoder FD` by `tasks.encoder_crew`. What encodes needs the interpreter for a moment with
each chunk; in a process of its own it does not take it from the thread that launches the forward.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from storage.objects import ObjectInfo, ObjectWriter
from storage.paths import store_path
from storage.store import open_store
from tasks import messages
from tasks.encoding_jobs import Done, Encoded, Job, Setup, Span
from tasks.lifeline import tie_to_parent
from tasks.remote_errors import KNOWN_ERRORS, to_message
from tasks.shared_memory import SharedMemory

# For each thread that encodes, so many that wait for the disk: a commit is a matter of the journal of the file system,
# which takes many at once and a twentieth of a second or more, however small they are. What waits is in the page cache.
COMMITS_PER_THREAD = 3


class Encoder:
    """Does jobs on threads and says what became of each.

    Args:
        setup: where samples go.
        connection: to the parent.
    """

    def __init__(self, setup: Setup, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._memory = SharedMemory(setup.memory_bytes, setup.memory_fd)
        self._spans = threading.local()
        place = store_path(setup.store)
        span = self._span if setup.keeps_spans else _ignore
        objects = ObjectWriter(place, open_store(place, setup.spec_digest).spec, span)
        self._write = objects.write_split if setup.takes_split else objects.write
        self._turns = threading.Semaphore(setup.threads)
        self._pool = ThreadPoolExecutor(setup.threads * (1 + COMMITS_PER_THREAD), thread_name_prefix="encode")

    def submit(self, job: Job) -> None:
        """Queue a job."""
        self._pool.submit(self._run_or_end, job)

    def close(self) -> None:
        """End the threads, after what they do now."""
        self._pool.shutdown(cancel_futures=True)

    def _run_or_end(self, job: Job) -> None:
        try:
            self._run(job)
        except BaseException:  # noqa: BLE001 - a pool would keep it to itself; the parent hears that this process ended
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(1)

    def _run(self, job: Job) -> None:
        began, self._spans.kept = time.thread_time(), []
        info: ObjectInfo | None = None
        failure: messages.Failed | None = None
        turn = _Turn(self._turns)

        def let_go() -> None:
            turn.end()
            self._tell(Encoded(job.number))

        try:
            with self._span("write"):
                info = self._write(job.input_ids, self._states(job), let_go)
        except KNOWN_ERRORS as error:
            failure = to_message(error)
        finally:
            turn.end()
        self._tell(Done(job.number, info, failure, time.thread_time() - began, self._spans.kept))

    def _tell(self, message: Encoded | Done) -> None:
        with self._sending:
            self._connection.send(message)

    def _states(self, job: Job) -> Any:
        return np.ndarray(job.shape, job.dtype, self._memory.array.data, job.start)

    @contextlib.contextmanager
    def _span(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._spans.kept.append(Span(name, began, time.monotonic() - began, threading.current_thread().name))


class _Turn:
    """One of so many that encode at a time; waits for it when made."""

    def __init__(self, turns: threading.Semaphore) -> None:
        self._turns: threading.Semaphore | None = turns
        turns.acquire()

    def end(self) -> None:
        """Let the next begin; more than once is no more."""
        if self._turns is not None:
            self._turns.release()
        self._turns = None


def _ignore(_name: str) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def main() -> None:
    """Serve on the file descriptor given as the only argument, until the parent says that there is nothing more."""
    connection = Connection(int(sys.argv[1]))
    try:
        setup: Setup = connection.recv()
        tie_to_parent(setup.parent_pid)
        encoder = Encoder(setup, connection)
        while (job := connection.recv()) is not None:
            encoder.submit(job)
        encoder.close()
    except EOFError:
        os._exit(1)  # the parent is gone: what it had not heard of is done again
    sys.stderr.flush()
    os._exit(0)  # Python would tidy up for a while what ends with the process


if __name__ == "__main__":
    main()
