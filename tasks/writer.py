"""The end of the write path: samples that have landed are encoded and committed, by threads or by processes."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from storage.objects import ObjectInfo
from tasks.landing import Landed
from tasks.trace import Trace

# numpy has no bfloat16; the store takes its bits.
VIEWS = {torch.bfloat16: torch.uint16}


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample on its way: the unit it belongs to, its index in the tokens artifact, input_ids: int32[num_tokens]."""

    unit: int
    index: int
    input_ids: npt.NDArray[np.int32]


class Writer(Protocol):
    """Takes samples and commits them later.

    Attributes:
        on_error: called with what kept a sample from the store, or ended the writer; to be set.
        cpu_seconds: what encoding has taken, in all.
    """

    on_error: Callable[[BaseException], None]
    cpu_seconds: float

    def submit(self, sample: Sample, landed: Landed) -> None:
        """Queue one sample; its memory is given back once it is not needed any more."""
        ...

    def close(self) -> None:
        """End, after what is done now."""
        ...


class StateWriter:
    """Commits samples on a pool of threads: enough beside a CPU's forward, which takes a hundred times as long.

    Args:
        write: stores a sample: `ObjectWriter.write`, or `write_split` for states that were split on the device.
        threads: encoders.
        on_commit: called on an encoder thread for each sample that is in the store.
        trace: gets a span a sample.

    Attributes:
        on_error: called there with what kept one from it; to be set.
        cpu_seconds: what the encoders have computed, in all.
    """

    def __init__(
        self,
        write: Callable[[npt.NDArray[np.int32], npt.NDArray[Any]], ObjectInfo],
        *,
        threads: int,
        on_commit: Callable[[Sample, ObjectInfo], None],
        trace: Trace,
    ) -> None:
        self._write_sample = write
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._on_commit = on_commit
        self.on_error: Callable[[BaseException], None] = raise_error
        self._trace = trace
        self._lock = threading.Lock()
        self.cpu_seconds = 0.0

    def submit(self, sample: Sample, landed: Landed) -> None:
        """Queue one sample; its memory is given back once it is not needed any more."""
        self._pool.submit(self._write, sample, landed)

    def close(self) -> None:
        """End the threads, after what they do now."""
        self._pool.shutdown(cancel_futures=True)

    def _write(self, sample: Sample, landed: Landed) -> None:
        began = time.thread_time()
        try:
            landed.wait()
            with self._trace.span("write", tokens=len(sample.input_ids)):
                info = self._store(sample, landed)
            self._on_commit(sample, info)
        except BaseException as error:  # noqa: BLE001 - a pool would keep it to itself
            self.on_error(error)
        finally:
            with self._lock:
                self.cpu_seconds += time.thread_time() - began

    def _store(self, sample: Sample, landed: Landed) -> ObjectInfo:
        try:
            view = VIEWS.get(landed.states.dtype, landed.states.dtype)
            return self._write_sample(sample.input_ids, landed.states.view(view).numpy())
        finally:
            landed.give_back()


def raise_error(error: BaseException) -> None:
    """Raise it: what a writer does with errors until somebody wants to hear of them."""
    raise error
