"""The write path of an engine process: encode and commit on threads, with bounded bytes in flight."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt
import torch

from storage.objects import ObjectInfo, ObjectWriter

# numpy has no bfloat16; the store takes its bits.
_VIEWS = {torch.bfloat16: torch.uint16}


class StateWriter:
    """Commits samples on a pool of threads; `submit` blocks while more than `max_in_flight_bytes` wait.

    Args:
        objects: where samples go.
        threads: encoders.
        max_in_flight_bytes: most bytes of states that wait; one sample larger than that still passes, alone.
        on_commit: called on an encoder thread for each sample that is in the store.
    """

    def __init__(
        self, objects: ObjectWriter, *, threads: int, max_in_flight_bytes: int, on_commit: Callable[[ObjectInfo], None]
    ) -> None:
        self._objects = objects
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        self._limit = max_in_flight_bytes
        self._on_commit = on_commit
        self._in_flight_bytes = 0
        self._changed = threading.Condition()
        self._pending: set[Future[None]] = set()

    def submit(self, input_ids: npt.NDArray[np.int32], hidden_states: torch.Tensor) -> None:
        """Queue one sample; hidden_states: [num_tokens, num_captured, hidden_size] in the storage dtype, on the CPU.

        Raises:
            StorageError: an earlier sample could not be written.
        """
        self._raise_first_error()
        nbytes = hidden_states.nbytes
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight_bytes or self._in_flight_bytes + nbytes <= self._limit)
            self._in_flight_bytes += nbytes
        future = self._pool.submit(self._write, input_ids, hidden_states, nbytes)
        with self._changed:
            self._pending.add(future)

    def drain(self) -> None:
        """Wait until every sample is committed.

        Raises:
            StorageError: a sample could not be written.
        """
        with self._changed:
            pending = set(self._pending)
        wait(pending)  # rather than for no bytes in flight: those are gone before the error is known
        self._raise_first_error()

    def close(self) -> None:
        """End the threads, after what they do now."""
        self._pool.shutdown(cancel_futures=True)

    def _write(self, input_ids: npt.NDArray[np.int32], hidden_states: torch.Tensor, nbytes: int) -> None:
        try:
            view = _VIEWS.get(hidden_states.dtype, hidden_states.dtype)
            self._on_commit(self._objects.write(input_ids, hidden_states.view(view).numpy()))
        finally:
            with self._changed:
                self._in_flight_bytes -= nbytes
                self._changed.notify_all()

    def _raise_first_error(self) -> None:
        with self._changed:
            done = {future for future in self._pending if future.done()}
            self._pending -= done
        for future in done:
            future.result()
