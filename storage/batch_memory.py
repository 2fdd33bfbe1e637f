"""Memory of batches: what one has let go is for the next, since to get fresh pages costs half of what decoding does."""

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

# Below that fresh memory is no matter, and a large block would be kept from what is large.
LEAST_BYTES = 1 << 20

Block = npt.NDArray[np.uint8]


class Blocks:
    """Blocks of memory, each of which comes back by itself once nobody has it; may be shared by threads."""

    def __init__(self) -> None:
        self._free: list[Block] = []
        # They come back wherever an object ends, also in a thread that is in `take` at that moment: no lock for these.
        self._returned: deque[Block] = deque()
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> Block:
        """Return memory with anything in it."""
        with self._lock:
            block = self._find(num_bytes)
        taken = block[:num_bytes]
        weakref.finalize(taken, self._returned.append, block).atexit = False
        return taken

    def clear(self) -> None:
        """Let go what nobody has."""
        with self._lock:
            self._returned.clear()
            self._free.clear()

    def _find(self, num_bytes: int) -> Block:
        while self._returned:
            self._free.append(self._returned.popleft())
        self._free.sort(key=len)
        place = next((i for i, block in enumerate(self._free) if len(block) >= num_bytes), None)
        if place is not None:
            return self._free.pop(place)
        if self._free:  # too small for this one: it would only be kept
            self._free.pop()
        return np.empty(num_bytes, np.uint8)


# Of all loaders: batches of the one before are as good for the next.
BLOCKS = Blocks()


def make_values(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return memory for a batch, with anything in it.

    In a worker process of a DataLoader it is where the training process sees it too: from any other memory a worker
    would copy to such memory to hand the batch over, as torch's own collators know.
    """
    num_bytes = math.prod(shape) * dtype.itemsize
    if get_worker_info() is None:
        if num_bytes < LEAST_BYTES:
            return torch.empty(*shape, dtype=dtype)
        return torch.from_numpy(BLOCKS.take(num_bytes)).view(dtype).view(shape)
    shared = torch.UntypedStorage._new_shared(num_bytes)  # type: ignore[no-untyped-call]  # noqa: SLF001 - it has no public name
    return torch.empty(0, dtype=dtype).set_(shared).view(shape)


def copy_values(values: Tensor, out: Tensor) -> None:
    """Copy by numpy where the dtype stays: torch would have all cores copy, which wait for each other."""
    if values.dtype == out.dtype == torch.bfloat16:
        values, out = values.view(torch.int16), out.view(torch.int16)
    if values.dtype == out.dtype:
        np.copyto(out.numpy(), values.numpy())
    else:
        out.copy_(values)


def fill_rows(values: Tensor, out: Tensor) -> None:
    """Copy values into the first rows of a part of a batch, and zeros into the others."""
    copy_values(values, out[: len(values)])
    out[len(values) :] = 0
