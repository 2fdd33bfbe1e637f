"""The end of a GPU's write path: processes that encode and commit, away from the interpreter of the forward."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from queue import SimpleQueue

from storage.objects import ObjectInfo
from tasks.encoding_jobs import Done, Encoded, Job, Setup
from tasks.errors import EncoderLostError
from tasks.landing import Landed
from tasks.lifeline import describe_end
from tasks.remote_errors import from_message
from tasks.shared_memory import SharedMemory
from tasks.trace import Trace
from tasks.writer import VIEWS, Sample, raise_error

# Of one process: few enough not to wait for each other's turn of the interpreter; half of them wait for the disk.
THREADS_PER_PROCESS = 8
_END_SECONDS = 10.0


@dataclass(slots=True)
class _Process:
    """One of them, and the jobs that it has."""

    name: str
    child: subprocess.Popen[bytes]
    connection: Connection
    waiting_bytes: int = 0


class EncoderCrew:
    """Commits samples by processes, which read them from the memory where they have landed.

    Args:
        store: path of the store.
        spec_digest: of the states.
        memory: where they land.
        threads: encoders, in all.
        takes_split: states are split for `ObjectWriter.write_split`.
        on_commit: called, on a thread for each process, with each sample that is in the store.
        trace: gets the spans of a sample.

    Attributes:
        on_error: called there with what kept one from it, or what ended a process; to be set.
        cpu_seconds: what the encoders have computed, in all.
    """

    def __init__(
        self,
        store: str,
        spec_digest: str,
        memory: SharedMemory,
        *,
        threads: int,
        takes_split: bool,
        on_commit: Callable[[Sample, ObjectInfo], None],
        trace: Trace,
    ) -> None:
        self.on_error: Callable[[BaseException], None] = raise_error
        self.cpu_seconds = 0.0
        self._on_commit = on_commit
        self._trace = trace
        self._jobs: dict[int, Sample] = {}
        self._landed: dict[int, Landed] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._queue: SimpleQueue[tuple[Sample, Landed] | None] = SimpleQueue()
        count = max(1, threads // THREADS_PER_PROCESS)
        setup = Setup(
            store,
            spec_digest,
            max(1, threads // count),
            takes_split,
            trace.is_kept,
            memory.fd,
            memory.array.nbytes,
            os.getpid(),
        )
        self._processes = [_start(f"encoder {number}", setup) for number in range(1, count + 1)]
        self._threads = [threading.Thread(target=self._send_all, name="hand over", daemon=True)]
        self._threads += [threading.Thread(target=self._hear, args=(one,), daemon=True) for one in self._processes]
        for thread in self._threads:
            thread.start()

    def submit(self, sample: Sample, landed: Landed) -> None:
        """Queue one sample; its memory is given back once it is encoded, or cannot be."""
        self._queue.put((sample, landed))

    def close(self) -> None:
        """End the processes, after what they do now."""
        self._is_closed = True
        self._queue.put(None)
        self._threads[0].join()
        for process in self._processes:
            try:
                process.child.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.child.kill()
                process.child.wait()
        for thread in self._threads[1:]:
            thread.join()

    def _send_all(self) -> None:
        try:
            number = 0
            while (item := self._queue.get()) is not None and not self._is_closed:
                item[1].wait()
                number += 1
                self._send(number, *item)
        except BaseException as error:  # noqa: BLE001 - the forward's thread raises it
            self.on_error(error)
        for process in self._processes:
            _tell(process, None)

    def _send(self, number: int, sample: Sample, landed: Landed) -> None:
        states = landed.states.view(VIEWS.get(landed.states.dtype, landed.states.dtype)).numpy()
        with self._lock:
            process = min(self._processes, key=lambda one: one.waiting_bytes)
            process.waiting_bytes += states.nbytes
            self._jobs[number], self._landed[number] = sample, landed
        _tell(process, Job(number, sample.input_ids, landed.start, states.dtype.str, states.shape))

    def _hear(self, process: _Process) -> None:
        try:
            while True:
                message: Encoded | Done = process.connection.recv()
                self._give_back(process, message.number)
                if isinstance(message, Done):
                    self._settle(process, message)
        except (EOFError, OSError):
            if not self._is_closed:
                how = describe_end(process.child.wait())
                self.on_error(
                    EncoderLostError(f"a process that encodes {how}; what it had not committed is done again")
                )
        except BaseException as error:  # noqa: BLE001 - nobody else hears this thread
            self.on_error(error)

    def _give_back(self, process: _Process, number: int) -> None:
        """Let the memory of a job be used again, if that was not said before."""
        with self._lock:
            landed = self._landed.pop(number, None)
            if landed is None:
                return
            process.waiting_bytes -= landed.num_bytes
        landed.give_back()

    def _settle(self, process: _Process, done: Done) -> None:
        with self._lock:
            sample = self._jobs.pop(done.number)
            self.cpu_seconds += done.cpu_seconds
        for span in done.spans:
            track = f"{process.name} {span.thread}"
            self._trace.add(span.name, span.began, span.seconds, track, tokens=len(sample.input_ids))
        if done.failure is not None:
            self.on_error(from_message(done.failure))
        if done.info is not None:
            self._on_commit(sample, done.info)


def _start(name: str, setup: Setup) -> _Process:
    ours, theirs = Pipe()
    child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        # -P: a folder named tasks in the user's working directory must not shadow ours
        [sys.executable, "-P", "-m", "tasks.encoder", str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=(theirs.fileno(), setup.memory_fd),
        start_new_session=True,  # Ctrl-C goes to the parent, which decides
    )
    theirs.close()
    ours.send(setup)
    return _Process(name, child, ours)


def _tell(process: _Process, message: Job | None) -> None:
    # One that is gone: the thread that hears it says how it ended.
    with contextlib.suppress(BrokenPipeError):
        process.connection.send(message)
