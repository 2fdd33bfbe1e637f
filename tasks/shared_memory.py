"""Memory that several processes of one host use, by a file descriptor; the kernel frees it with the last of them."""

import mmap
import os

import numpy as np
import numpy.typing as npt


class SharedMemory:
    """So many bytes, mapped into this process: made anew, or another process's by the descriptor that it handed down.

    A file that only memory holds: it has no name that a killed process would leave behind, and the size of `/dev/shm`
    does not limit it.

    Args:
        num_bytes: its size.
        fd: of memory that exists already.

    Attributes:
        fd: to be handed down to a child.
        array: the memory, uint8[num_bytes].
    """

    def __init__(self, num_bytes: int, fd: int | None = None) -> None:
        self.fd = os.memfd_create("aerie-states") if fd is None else fd
        if fd is None:
            os.truncate(self.fd, num_bytes)
        self._map = mmap.mmap(self.fd, num_bytes)
        self.array: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Give the descriptor back; the memory goes with the last array that shows it."""
        os.close(self.fd)
