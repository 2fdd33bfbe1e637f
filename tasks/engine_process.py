"""The parent's handle on an engine process: start it, give it units of work, end it."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tasks import messages
from tasks.engine.claims import describe_holder, find_holder
from tasks.engine.devices import DeviceGroup, environment
from tasks.engine.errors import RankLostError
from tasks.engine_counts import EngineCounts
from tasks.errors import RunEndedError, WorkerError
from tasks.lifeline import describe_end
from tasks.patience import Patience
from tasks.remote_errors import from_message

_STOP_SECONDS = 10.0
# Whatever the user has set wins.
_DEFAULTS = {
    # Torch's threads spin while they wait for each other. Where anything else wants a core, as our encoders do, that
    # made a forward of 300 tokens 14 times slower on two cores.
    "OMP_WAIT_POLICY": "PASSIVE",
}
# No model hub, no progress bars in the log.
_QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "SGLANG_DISABLE_TQDM": "1"}

OnEvent = Callable[[messages.Message], None]


class _Unit:
    """A unit that the worker has: what to call once its forward is over, and how it ended."""

    def __init__(self, on_computed: Callable[[], object]) -> None:
        self.on_computed = on_computed
        self.outgrown = ""
        self.done: messages.UnitDone | None = None
        self.error: BaseException | None = None

    @property
    def is_over(self) -> bool:
        return self.done is not None or self.error is not None


class EngineProcess:
    """A worker process for one device group; started on first use, kept until `close`, restarted after a death.

    Its output goes to `log_path`. It dies with this process, however that ends: the kernel ties it to the thread that
    spawned it, so that is a thread which lives exactly as long as the child.
    """

    MODULE: ClassVar[str] = "tasks.worker"  # tests put a worker with faults here

    def __init__(self, start: messages.Start, group: DeviceGroup, log_path: Path) -> None:
        self.group = group
        self.log_path = log_path
        self.counts = EngineCounts(group.name)
        self._start = replace(start, device=group.kind, gpus=[gpu.uuid for gpu in group.gpus])
        self._was_started = False
        self._is_retired = False
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._reaper: threading.Thread | None = None
        self._patience = Patience()
        self._units: dict[int, _Unit] = {}
        self._last_number = 0
        self._is_heard = False  # by the thread of one of the units
        self._turn = threading.Condition()
        self._sending = threading.Lock()

    def find_holder(self) -> str | None:
        """Say which process of another run has a device of this engine, if one has it."""
        if self._process is None:
            for gpu in self.group.gpus:
                if (pid := find_holder(gpu.uuid)) is not None:
                    return describe_holder(gpu.uuid, pid)
        return None

    def run_unit(
        self, samples: list[int], on_event: OnEvent, on_computed: Callable[[], object] = lambda: None
    ) -> messages.UnitDone:
        """Have the worker compute `samples`; a second thread may do so once the first unit's forward is over.

        Args:
            samples: indexes into the tokens artifact.
            on_event: gets what the worker reports meanwhile, of its other unit too, unless the thread of that hears it.
            on_computed: called when the worker may have another unit, while what is left of this one is written.

        Raises:
            EngineError, StorageError: what the worker could not go on from.
            DeviceTakenError: an engine of another run was quicker to take a device.
            WorkerError, RankLostError: the worker died, or said nothing for too long and was ended.
        """
        unit = _Unit(on_computed)
        try:
            self._send_unit(unit, samples, on_event)
            while self._take_turn(unit):
                self._hear(on_event)
                self._end_turn()
        except BaseException as error:
            self._fail_all(error, on_event)
            raise
        if unit.error is not None:
            raise unit.error
        assert unit.done is not None  # noqa: S101 - it is over
        if unit.outgrown:
            self._tell(on_event, f"ended, for the next unit a fresh one starts ({unit.outgrown})")
            self.close()
        return unit.done

    def _send_unit(self, unit: _Unit, samples: list[int], on_event: OnEvent) -> None:
        with self._sending:
            if self._was_started and self._connection is None:
                self.counts.restarts += 1
                self._tell(on_event, "starts again")
            with self._death_explained():
                connection = self._connection or self._spawn()
            self._last_number += 1
            self._units[self._last_number] = unit
            with contextlib.suppress(OSError):  # it died since the last unit: what it may have said of that comes next
                connection.send_bytes(messages.encode(messages.RunUnit(self._last_number, samples)))

    def _take_turn(self, unit: _Unit) -> bool:
        """Wait until no other unit's thread hears the worker; False once this unit is over."""
        with self._turn:
            self._turn.wait_for(lambda: unit.is_over or not self._is_heard)
            self._is_heard = self._is_heard or not unit.is_over
            return not unit.is_over

    def _end_turn(self) -> None:
        with self._turn:
            self._is_heard = False
            self._turn.notify_all()

    def _hear(self, on_event: OnEvent) -> None:
        """Take in one message, of whichever unit."""
        connection = self._connection
        if connection is None:
            raise WorkerError(f"engine process on {self.group.name} was ended", self.log_path)
        message = self._receive(connection)
        if isinstance(message, messages.UnitComputed):
            unit = self._units[message.number]
            unit.outgrown = message.outgrown
            if not unit.outgrown:
                unit.on_computed()
        elif isinstance(message, messages.UnitDone):
            with self._turn:
                self._units.pop(message.number).done = message
        else:
            on_event(message)

    def _fail_all(self, error: BaseException, on_event: OnEvent) -> None:
        """End the worker, and with the same error every unit that it has."""
        with self._sending:
            self.kill()
            with self._turn:
                for unit in self._units.values():
                    unit.error = error
                self._units.clear()
                self._is_heard = False
                self._turn.notify_all()
        if isinstance(error, WorkerError | RankLostError) and not self._is_retired:  # else it was the run that ended it
            self._tell(on_event, f"lost, what it had not committed is done again ({error})")

    def close(self) -> None:
        """End the worker: ask first, kill after ten seconds."""
        if self._connection is None or self._reaper is None:
            return
        try:
            self._connection.send_bytes(messages.encode(messages.Stop()))
            self._reaper.join(_STOP_SECONDS)
        except OSError:
            self._reaper.join(0)  # it is gone already
        self.kill()

    def kill(self) -> None:
        """End the worker at once, from any thread.

        What it has committed stays, what it was writing was never visible.
        """
        with self._changing:
            if self._process is not None and self._process.poll() is None:
                self._process.kill()
            if self._reaper is not None:
                self._reaper.join()
            # Not closed here: another thread may be reading from it. The last who uses it lets it go.
            self._process = self._connection = self._reaper = None

    def retire(self) -> None:
        """Start no worker from now on."""
        with self._changing:
            self._is_retired = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.kill()

    def _tell(self, on_event: OnEvent, what: str) -> None:
        on_event(messages.Phase(what, self.group.name))

    def _receive(self, connection: Connection) -> messages.Message:
        with self._death_explained():
            if not connection.poll(self._patience.seconds):
                silence = f"said nothing for {self._patience.seconds:,.0f} s and was ended"
                raise WorkerError(f"engine process on {self.group.name} {silence}", self.log_path)
            message = messages.decode(connection.recv_bytes())
        if isinstance(message, messages.Failed):
            raise from_message(message)
        self._was_started = True
        self._patience.hear(message)
        self.counts.hear(message)
        return replace(message, engine=self.group.name) if isinstance(message, messages.Phase) else message

    @contextlib.contextmanager
    def _death_explained(self) -> Iterator[None]:
        """Turn a broken pipe to the worker into what became of the worker; that of `on_event` is not ours to name."""
        try:
            yield
        except (EOFError, OSError) as error:
            raise WorkerError(f"engine process on {self.group.name} {self._cause_of_death()}", self.log_path) from error

    def _spawn(self) -> Connection:
        with self._changing:
            if self._is_retired:
                raise RunEndedError("the run has ended; start another")
            return self._spawn_child()

    def _spawn_child(self) -> Connection:
        ours, theirs = multiprocessing.Pipe()
        self._patience = Patience()
        spawned = threading.Event()
        self._reaper = threading.Thread(
            target=self._run_child, args=(theirs, spawned), name=f"engine {self.group.name}", daemon=True
        )
        self._reaper.start()
        spawned.wait()
        theirs.close()
        self._connection = ours
        ours.send_bytes(messages.encode(self._start))
        return ours

    def _run_child(self, theirs: Connection, spawned: threading.Event) -> None:
        """Spawn the child and wait for its end, on one thread."""
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    # -P: a folder named tasks in the user's working directory must not shadow ours
                    [sys.executable, "-P", "-m", self.MODULE, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Ctrl-C goes to the parent, which decides
                    env=_DEFAULTS | os.environ | _QUIET | environment(self.group),
                )
        finally:
            spawned.set()
        self._process.wait()

    def _cause_of_death(self) -> str:
        """End what is left of the child and say how it went."""
        process = self._process
        if process is None:
            return "could not be started"
        if self._reaper is not None:
            self._reaper.join(_STOP_SECONDS)
        code = process.poll()
        self.kill()
        if code is None:
            return "stopped answering"
        return describe_end(code)
