"""The main of an engine process: it reads token ids, runs the forward, encodes and commits.

Started as `python -m tasks.worker FD` by `tasks.engine_process`; FD is its end of a socket pair. Gigabytes of states
never cross that pipe, only the messages of `tasks.messages` do.
"""

import os
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt
import torch

from storage.errors import StorageError
from storage.objects import ObjectInfo, ObjectWriter
from storage.paths import store_path
from storage.store import Store, open_store
from storage.tokens import Tokens, open_tokens
from tasks import messages
from tasks.batches import make_batches
from tasks.channel import Channel
from tasks.engine.base import Engine
from tasks.engine.canary import worst_difference
from tasks.engine.claims import claim_devices
from tasks.engine.errors import EngineOutOfMemoryError, EngineStateError
from tasks.engine_start import start_engine
from tasks.faults import Fault, find_faults
from tasks.lifeline import tie_to_parent
from tasks.memory import MemoryWatch
from tasks.remote_errors import KNOWN_ERRORS, to_message
from tasks.writer import StateWriter

Ids = npt.NDArray[np.int32]


class Worker:
    """One engine and its write path, for one model and one tokens artifact."""

    def __init__(self, start: messages.Start, channel: Channel, tokens: Tokens, store: Store) -> None:
        self._channel = channel
        self._tokens = tokens
        self._hashes = tokens.sample_hashes
        self._lengths = np.diff(tokens.offsets)
        self._store = store
        self._forward_seconds = 0.0
        self._max_batch_tokens = start.max_batch_tokens
        self._recheck_fraction = start.recheck_fraction
        self._engine: Engine = start_engine(start, store.spec.dtype.states, channel)
        self._writer = StateWriter(
            ObjectWriter(store.path, store.spec),
            threads=start.encode_threads,
            max_in_flight_bytes=start.max_in_flight_bytes,
            on_commit=self._report_commit,
        )
        self._memory = MemoryWatch(start.max_growth_bytes)

    def run_unit(self, samples: Sequence[int]) -> messages.UnitDone:
        """Compute and commit those of `samples` that the store still lacks.

        Raises:
            EngineError: the forward cannot go on.
            StorageError: the store cannot be written.
        """
        started, self._forward_seconds = time.monotonic(), 0.0
        todo = self._missing(samples)
        while todo:
            todo = self._run_batches(todo)
        self._writer.drain()
        total = time.monotonic() - started
        return messages.UnitDone(
            self._forward_seconds,
            total - self._forward_seconds,
            self._memory.peak_memory_bytes(),
            self._memory.peak_device_bytes(),
            self._memory.outgrown(),
        )

    def close(self) -> None:
        """Free the engine and end the threads."""
        self._writer.close()
        self._engine.close()

    def _missing(self, samples: Sequence[int]) -> list[int]:
        """Leave out what the store has by now, and say so."""
        self._store.refresh()
        missing = set(self._store.missing(self._hashes[index] for index in samples))
        for index in samples:
            if (name := self._hashes[index]) not in missing:
                self._channel.send(messages.Committed(name, int(self._lengths[index]), 0, 0, existed=True))
        return [index for index in samples if self._hashes[index] in missing]

    def _run_batches(self, todo: Sequence[int]) -> list[int]:
        """Run samples in batches; returns what is left once the device turned out to hold less than thought."""
        budget = self._max_batch_tokens
        lengths = self._lengths[todo].tolist()
        batches = make_batches(lengths, max_tokens=budget, max_sequences=self._engine.options.max_sequences)
        for number, batch in enumerate(batches, start=1):
            self._run_batch([todo[place] for place in batch])
            if self._max_batch_tokens < budget:
                return [todo[place] for rest in batches[number:] for place in rest]
        return []

    def _run_batch(self, batch: list[int]) -> None:
        """Run one batch; where the device has no room, its halves; a single sample without room is set aside."""
        sequences = [self._tokens.input_ids(index) for index in batch]
        self._channel.send(messages.BatchStarted(sum(map(len, sequences))))
        started = time.monotonic()
        failure: EngineOutOfMemoryError | EngineStateError | None = None
        try:
            states, faults = self._forward(batch, sequences)
        except (EngineOutOfMemoryError, EngineStateError) as error:
            failure = error
        self._forward_seconds += time.monotonic() - started
        if failure is not None:
            self._split(batch, failure)
            return
        row = 0
        for index, ids, fault in zip(batch, sequences, faults, strict=True):
            if fault is None:
                self._writer.submit(ids, states[row : row + len(ids)])
            else:
                self._quarantine(index, fault.reason, fault.detail)
            row += len(ids)

    def _forward(self, batch: list[int], sequences: list[Ids]) -> tuple[torch.Tensor, list[Fault | None]]:
        """Return the states, on the CPU, and what is wrong with each sample."""
        states = self._engine.forward(sequences)
        faults = find_faults(states, [len(ids) for ids in sequences], self._engine.options.layers)
        if len(batch) > 1:
            rows = torch.split(states, [len(ids) for ids in sequences])
            for place in self._choose(batch):
                faults[place] = faults[place] or self._compare_alone(sequences[place], rows[place])
        return states.cpu(), faults

    def _choose(self, batch: list[int]) -> list[int]:
        """Choose the places of samples to run again alone: by their hash, which is random, so always the same ones."""
        limit = self._recheck_fraction * 2**32
        return [place for place, index in enumerate(batch) if int(self._hashes[index][:8], 16) < limit]

    def _compare_alone(self, ids: Ids, states: torch.Tensor) -> Fault | None:
        alone = self._engine.forward([ids])
        difference = worst_difference(self._engine.options, states, alone)
        return None if difference is None else Fault("parity", f"in a batch and alone differ: {difference}")

    def _split(self, batch: list[int], error: EngineOutOfMemoryError | EngineStateError) -> None:
        """Run a batch that failed in halves, down to the sample at fault; remember the size of a half that may fit."""
        if len(batch) == 1:
            self._quarantine(batch[0], error.kind, str(error))
            return
        if isinstance(error, EngineOutOfMemoryError):
            self._max_batch_tokens = min(self._max_batch_tokens, max(1, int(self._lengths[batch].sum()) // 2))
        middle = len(batch) // 2
        self._run_batch(batch[:middle])
        self._run_batch(batch[middle:])

    def _quarantine(self, index: int, reason: str, detail: str) -> None:
        self._channel.send(messages.Quarantined(self._hashes[index], int(self._lengths[index]), reason, detail))

    def _report_commit(self, info: ObjectInfo) -> None:
        self._channel.send(
            messages.Committed(info.sample_hash, info.num_tokens, info.raw_bytes, info.stored_bytes, info.existed)
        )


def serve(channel: Channel) -> None:
    """Obey the parent until it says stop or is gone."""
    start = channel.receive()
    if not isinstance(start, messages.Start):
        raise TypeError(f"the first message must be Start, not {type(start).__name__}")
    tie_to_parent(start.parent_pid)
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
    worker = Worker(start, channel, tokens, open_store(place, start.spec_digest))
    while isinstance(message := channel.receive(), messages.RunUnit):
        channel.send(worker.run_unit(message.samples))
    worker.close()


def main() -> None:
    """Serve on the file descriptor given as the only argument."""
    channel = Channel(Connection(int(sys.argv[1])))
    try:
        serve(channel)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the parent is gone: nobody is left to tell


if __name__ == "__main__":
    main()
