"""From the forward to the store: states land on the host, are checked and stored, while the next are computed."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tasks.clocks import Clock
from tasks.engine.base import EngineOptions
from tasks.engine.canary import describe_difference
from tasks.faults import Fault, describe_faults
from tasks.landing import Landing
from tasks.open_units import OpenUnits
from tasks.trace import Trace
from tasks.writer import Sample, Writer

# Batches between the forward and the host: one that is being computed, and one that waits behind it, so that the device
# always has the next. Each keeps its states on the device.
MAX_WAITING = 2

# By time.monotonic.
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Batch:
    """What a forward gave, on the device and perhaps not yet computed.

    Attributes:
        samples: one after the other, all of one unit.
        states: those of each sample, as the writer takes them.
        flags: those of `faults.flag_rows`.
        rechecks: place in `samples` -> how far each layer is from that of the sample alone: float64[num_captured].
        began: when the device began with it, a mark of the clock.
        ended: when it has done with it.
    """

    samples: Sequence[Sample]
    states: Sequence[torch.Tensor]
    flags: torch.Tensor
    rechecks: dict[int, torch.Tensor]
    began: Any
    ended: Any

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [len(sample.input_ids) for sample in self.samples]


class WritePath:
    """Takes batches from the forward; a thread lands and checks them, the writer stores them.

    `hand_over` returns while the device still computes, and holds the forward up only when states wait for room on the
    host: bytes in flight are bounded by the landing, batches on the device by `MAX_WAITING`.

    Args:
        options: of the engine.
        clock: of its device.
        landing: where states come to the host.
        writer: what stores them; its errors end the path.
        units: gets the times of each batch.
        on_fault: called with a sample that must not be stored, and why.
        on_error: called once with what ends the path.
        trace: gets a span for each forward, copy and wait.
    """

    def __init__(  # noqa: PLR0913 - it joins these
        self,
        options: EngineOptions,
        clock: Clock,
        landing: Landing,
        writer: Writer,
        units: OpenUnits,
        *,
        on_fault: Callable[[Sample, Fault], None],
        on_error: Callable[[BaseException], None],
        trace: Trace,
    ) -> None:
        self._options = options
        self._clock = clock
        self._landing = landing
        self._writer = writer
        writer.on_error = self.fail
        self._units = units
        self._on_fault = on_fault
        self._on_error = on_error
        self._trace = trace
        self._batches: deque[tuple[Batch, Interval]] = deque()
        self._landing_now = False
        self._held: Interval = (0.0, 0.0)  # when the batch before was handed over
        self._last_ended = float("inf")
        self._error: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._land_all, name="land", daemon=True)
        self._thread.start()

    def hand_over(self, batch: Batch) -> None:
        """Queue a batch; waits while `MAX_WAITING` are ahead of it.

        Raises:
            StorageError: an earlier sample could not be written.
        """
        began = time.monotonic()
        with self._changed:
            self._batches.append((batch, self._held))
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(self._batches) < MAX_WAITING or self._error is not None)
            self._held = (began, time.monotonic())
        self.raise_error()

    def empty_device(self) -> bool:
        """Wait until no batch is on the device any more; says whether there was one."""
        with self._changed:
            if not self._batches and not self._landing_now:
                return False
            self._changed.wait_for(lambda: not (self._batches or self._landing_now) or self._error is not None)
        self.raise_error()
        return True

    def fail(self, error: BaseException) -> None:
        """End the path; whoever waits for it hears why."""
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            self._changed.notify_all()
        self._units.wake()
        self._on_error(error)

    def raise_error(self) -> None:
        """Raise what ended the path, if anything has."""
        if self._error is not None:
            raise self._error

    @property
    def has_failed(self) -> bool:
        """Whether something has ended the path."""
        return self._error is not None

    def close(self) -> None:
        """End the threads, after what they do now, and let the memory go."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._landing.ring.close()
        self._thread.join()
        self._writer.close()
        self._landing.close()  # nobody reads from it any more

    def _land_all(self) -> None:
        try:
            while (waiting := self._next()) is not None:
                self._land(*waiting)
                del waiting  # its states with it, so that the device has their memory while this waits
        except BaseException as error:  # noqa: BLE001 - the forward's thread raises it
            if not self._is_closed:
                self.fail(error)

    def _next(self) -> tuple[Batch, Interval] | None:
        with self._changed:
            self._landing_now = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._batches or self._is_closed)
            if self._is_closed:
                return None
            self._landing_now = True
            return self._batches[0]

    def _land(self, batch: Batch, held: Interval) -> None:
        self._clock.wait(batch.ended)
        self._measure(batch, held)
        with self._trace.span("copy", tokens=sum(batch.lengths)):
            faults = self._find_faults(batch)
            for sample, fault, states in zip(batch.samples, faults, batch.states, strict=True):
                if fault is None:
                    self._writer.submit(sample, self._landing.land(states))
                else:
                    self._on_fault(sample, fault)
            self._landing.finish()
        with self._changed:
            self._batches.popleft()
            self._changed.notify_all()

    def _measure(self, batch: Batch, held: Interval) -> None:
        """Count the time of a forward; and that before it, as far as the forward was held up and the device idle."""
        began, ended = self._clock.on_host(batch.began), self._clock.on_host(batch.ended)
        seconds = self._clock.seconds(batch.began, batch.ended)
        waited = max(0.0, min(held[1], began) - max(held[0], self._last_ended))
        self._last_ended = ended
        self._units.add_times(batch.samples[0].unit, seconds, waited)
        self._trace.add("wait", began - waited, waited, "device")
        self._trace.add("forward", began, seconds, "device", tokens=sum(batch.lengths), samples=len(batch.samples))

    def _find_faults(self, batch: Batch) -> list[Fault | None]:
        faults = describe_faults(self._landing.to_host(batch.flags), batch.lengths)
        for place, errors in batch.rechecks.items():
            difference = describe_difference(self._options, self._landing.to_host(errors).tolist())
            if difference is not None and faults[place] is None:
                faults[place] = Fault("parity", f"in a batch and alone differ: {difference}")
        return faults
