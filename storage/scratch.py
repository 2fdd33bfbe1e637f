"""Memory that reads use again and again."""

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.codecs import TOKENS_PER_CHUNK
from storage.errors import StatesTooLargeError
from storage.specs import StateSpec


def allocate(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return fresh memory for states.

    Raises:
        StatesTooLargeError: there is not so much.
    """
    try:
        return np.empty(shape, dtype)
    except (MemoryError, ValueError) as error:  # more than there is, or than numpy can count
        num_bytes = prod(shape) * np.dtype(dtype).itemsize
        raise StatesTooLargeError(
            f"states {list(shape)} take {num_bytes:,} bytes, more than there is memory for; read fewer samples, layers "
            "or rows at a time"
        ) from error


class Scratch:
    """Memory that reads of one thread use again and again: pages of fresh memory cost as much as to copy a chunk."""

    def __init__(self) -> None:
        self._piece = memoryview(b"")
        self._chunk: npt.NDArray[Any] = np.empty(0)

    def piece(self, num_bytes: int) -> memoryview:
        """Return memory for a piece; it is overwritten by the next."""
        if len(self._piece) < num_bytes:
            self._piece = memoryview(bytearray(num_bytes))
        return self._piece[:num_bytes]

    def chunk(self, spec: StateSpec) -> npt.NDArray[Any]:
        """Return memory for a decoded inner chunk, [TOKENS_PER_CHUNK, stored_width]; it is overwritten by the next."""
        shape = (TOKENS_PER_CHUNK, spec.stored_width)
        if (self._chunk.shape, self._chunk.dtype) != (shape, spec.stored_dtype):
            self._chunk = allocate(shape, spec.stored_dtype)
        return self._chunk
