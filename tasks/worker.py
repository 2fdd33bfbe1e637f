"""The main of an engine process: it reads token ids, runs the forward, encodes and commits.

Started as `python -m tasks.worker FD` by `tasks.engine_process`; FD is its end of a socket pair. Gigabytes of states
never cross that pipe, only the messages of `tasks.messages` do.
"""

import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from storage.codecs import TOKENS_PER_CHUNK
from storage.errors import StorageError
from storage.objects import ObjectInfo, ObjectWriter
from storage.paths import store_path
from storage.store import Store, open_store
from storage.tokens import Tokens, open_tokens
from tasks import messages
from tasks.batches import make_batches
from tasks.channel import Channel
from tasks.clocks import make_clock
from tasks.encoder_crew import EncoderCrew
from tasks.engine.base import Engine
from tasks.engine.claims import claim_devices
from tasks.engine.errors import EngineOutOfMemoryError, EngineStateError
from tasks.engine_start import find_batch_tokens, start_engine
from tasks.faults import Fault
from tasks.inbox import Inbox
from tasks.landing import CpuLanding, Landing, SharedLanding
from tasks.launcher import Launcher
from tasks.lifeline import tie_to_parent
from tasks.memory import MemoryWatch
from tasks.open_units import OpenUnit, OpenUnits
from tasks.remote_errors import KNOWN_ERRORS, to_message
from tasks.trace import Trace
from tasks.write_path import WritePath
from tasks.writer import Sample, StateWriter, Writer

# Encoders must not keep the thread that launches the forward from the interpreter for Python's own 5 ms.
SWITCH_SECONDS = 1e-4


class Worker:
    """One engine and its write path, for one model and one tokens artifact.

    Args:
        start: what to load and where to write.
        channel: to the parent.
        tokens: what to compute.
        store: where states go.
        on_error: called, on any thread, with what ends the write path.

    Attributes:
        launcher: launches batches on the engine.
        landing: where its states come to the host.
        writer: what stores them.
        trace: the timeline.
    """

    def __init__(
        self,
        start: messages.Start,
        channel: Channel,
        tokens: Tokens,
        store: Store,
        on_error: Callable[[BaseException], None] = lambda _: None,
    ) -> None:
        self._channel = channel
        self._tokens = tokens
        self._hashes = tokens.sample_hashes
        self._lengths = np.diff(tokens.offsets)
        self._store = store
        self._engine: Engine = start_engine(start, store.spec.dtype.states, channel)
        self._max_batch_tokens = find_batch_tokens(start, self._engine, store.spec, channel)
        clock = make_clock(start.device)
        self._memory = MemoryWatch(start.max_growth_bytes)
        self._units = OpenUnits(self._tell_done)
        self.trace = Trace(Path(start.trace) if start.trace else None, f"engine {' '.join(start.gpus) or start.device}")
        # Where cores are dear; but how far lossy states are from what was given is measured on the host.
        splits = start.device == "cuda" and store.spec.is_exact
        self.launcher = Launcher(self._engine, clock, recheck_share=start.recheck_fraction, splits=splits)
        # A whole batch fits, so that a sample always does, filled up to whole token-chunks.
        batch_bytes = (start.max_batch_tokens + TOKENS_PER_CHUNK) * store.spec.bytes_per_token
        room_bytes = max(start.max_in_flight_bytes, batch_bytes)
        self.landing: Landing
        self.writer: Writer
        if start.device == "cuda":
            self.landing = SharedLanding(room_bytes)
            self.writer = EncoderCrew(
                start.store,
                start.spec_digest,
                self.landing.memory,
                threads=start.encode_threads,
                takes_split=splits,
                on_commit=self._tell_committed,
                trace=self.trace,
            )
        else:
            self.landing = CpuLanding(room_bytes)
            objects = ObjectWriter(store.path, store.spec, self.trace.span)
            self.writer = StateWriter(
                objects.write, threads=start.encode_threads, on_commit=self._tell_committed, trace=self.trace
            )
        self._path = WritePath(
            self._engine.options,
            clock,
            self.landing,
            self.writer,
            self._units,
            on_fault=self._tell_fault,
            on_error=on_error,
            trace=self.trace,
        )

    def run_unit(self, unit: messages.RunUnit) -> None:
        """Compute those samples of a unit that the store still lacks; they are written while this goes on.

        Raises:
            EngineError: the forward cannot go on.
            StorageError: the store cannot be written.
        """
        todo = self._missing(unit.samples)
        self._units.begin(unit.number, len(todo))
        while todo:
            todo = self._run_batches(unit.number, todo)
        outgrown = self._memory.outgrown(self.landing.unpinned_bytes)
        self._channel.send(messages.UnitComputed(unit.number, outgrown))
        self._units.end_forward(unit.number)

    def drain(self) -> None:
        """Wait until every sample is settled and every unit told.

        Raises:
            StorageError: a sample could not be written.
        """
        self._units.wait(lambda: self._path.has_failed)
        self._path.raise_error()

    def close(self) -> None:
        """Free the engine and end the threads, after what they do now."""
        self._path.close()
        self._engine.close()
        self.trace.close()

    def _missing(self, samples: Sequence[int]) -> list[int]:
        """Leave out what the store has by now, and say so."""
        self._store.refresh()
        missing = set(self._store.missing(self._hashes[index] for index in samples))
        for index in samples:
            if (name := self._hashes[index]) not in missing:
                self._channel.send(messages.Committed(name, int(self._lengths[index]), 0, 0, existed=True))
        return [index for index in samples if self._hashes[index] in missing]

    def _run_batches(self, unit: int, todo: Sequence[int]) -> list[int]:
        """Run samples in batches; returns what is left once the device turned out to hold less than thought."""
        budget = self._max_batch_tokens
        lengths = self._lengths[todo].tolist()
        batches = make_batches(lengths, max_tokens=budget, max_sequences=self._engine.options.max_sequences)
        for number, batch in enumerate(batches, start=1):
            self._run_batch([Sample(unit, todo[place], self._tokens.input_ids(todo[place])) for place in batch])
            if self._max_batch_tokens < budget:
                return [todo[place] for rest in batches[number:] for place in rest]
        return []

    def _run_batch(self, batch: list[Sample]) -> None:
        """Run one batch; where the device has no room, its halves; a single sample without room is set aside."""
        self._channel.send(messages.BatchStarted(sum(len(sample.input_ids) for sample in batch)))
        failure: EngineOutOfMemoryError | EngineStateError | None = None
        try:
            computed = self.launcher.launch(batch, [self._hashes[sample.index] for sample in batch])
        except (EngineOutOfMemoryError, EngineStateError) as error:
            failure = error
        if failure is None:
            self._path.hand_over(computed)
        else:
            self._split(batch, failure)

    def _split(self, batch: list[Sample], error: EngineOutOfMemoryError | EngineStateError) -> None:
        """Run a batch that failed in halves, down to the sample at fault; remember the size of a half that may fit."""
        is_crowded = isinstance(error, EngineOutOfMemoryError)
        if is_crowded and self._engine.options.device == "cuda" and self._path.empty_device():
            self._run_batch(batch)  # others had the room
            return
        if len(batch) == 1:
            self._tell_fault(batch[0], Fault(error.kind, str(error)))
            return
        if is_crowded:
            num_tokens = sum(len(sample.input_ids) for sample in batch)
            self._max_batch_tokens = min(self._max_batch_tokens, max(1, num_tokens // 2))
        middle = len(batch) // 2
        self._run_batch(batch[:middle])
        self._run_batch(batch[middle:])

    def _tell_fault(self, sample: Sample, fault: Fault) -> None:
        self._channel.send(
            messages.Quarantined(self._hashes[sample.index], len(sample.input_ids), fault.reason, fault.detail)
        )
        self._units.settle(sample.unit)

    def _tell_committed(self, sample: Sample, info: ObjectInfo) -> None:
        self._channel.send(
            messages.Committed(info.sample_hash, info.num_tokens, info.raw_bytes, info.stored_bytes, info.existed)
        )
        self._units.settle(sample.unit)

    def _tell_done(self, unit: OpenUnit) -> None:
        self._channel.send(
            messages.UnitDone(
                unit.number,
                unit.forward_seconds,
                unit.wait_seconds,
                self._memory.peak_memory_bytes(),
                self._memory.peak_device_bytes(),
            )
        )


def serve(channel: Channel) -> None:
    """Obey the parent until it says stop or is gone."""
    start = channel.receive()
    if not isinstance(start, messages.Start):
        raise TypeError(f"the first message must be Start, not {type(start).__name__}")
    tie_to_parent(start.parent_pid)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        _serve_units(start, channel)
    except KNOWN_ERRORS as error:
        channel.send(to_message(error))


def _serve_units(start: messages.Start, channel: Channel) -> None:
    claim_devices(start.gpus)
    place = store_path(start.store)
    tokens = open_tokens(place, start.tokens_digest)
    if tokens is None:
        raise StorageError(f"tokens artifact {start.tokens_digest} is not in {place}; run again to make it")
    inbox = Inbox(channel)
    worker = Worker(start, channel, tokens, open_store(place, start.spec_digest), inbox.fail)
    while isinstance(message := inbox.get(), messages.RunUnit):
        worker.run_unit(message)
    worker.close()


def main() -> None:
    """Serve on the file descriptor given as the only argument."""
    channel = Channel(Connection(int(sys.argv[1])))
    try:
        serve(channel)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone: nobody is left to tell
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # all is closed; Python would tidy up for seconds what ends with the process


if __name__ == "__main__":
    main()
