"""Where states come to the host: memory that processes share and a GPU copies into, or where the CPU computed them."""

import mmap
from typing import Protocol

import torch

from tasks.errors import LandingError
from tasks.ring import Region, Ring
from tasks.shared_memory import SharedMemory


class Landed:
    """States of one sample on the host.

    Attributes:
        states: to be read after `wait`.
    """

    def __init__(
        self, states: torch.Tensor, ring: Ring, region: Region, copied: torch.cuda.Event | None = None
    ) -> None:
        self.states = states
        self._ring = ring
        self._region = region
        self._copied = copied

    @property
    def start(self) -> int:
        """Where in the landing's memory they begin, in bytes."""
        return self._region.start

    @property
    def num_bytes(self) -> int:
        """How many bytes they are."""
        return self._region.num_bytes

    def wait(self) -> None:
        """Wait until they are here."""
        if self._copied is not None:
            self._copied.synchronize()

    def give_back(self) -> None:
        """Let their memory be used again."""
        self._ring.give_back(self._region)


class Landing(Protocol):
    """A bounded place for states.

    Attributes:
        ring: counts them.
    """

    ring: Ring

    @property
    def unpinned_bytes(self) -> int:
        """Bytes of memory that will be free again once what landed is written."""
        ...

    def land(self, states: torch.Tensor) -> Landed:
        """Bring states of one sample here; waits for room.

        Args:
            states: contiguous, on the engine's device, and computed.
        """
        ...

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return something small on the CPU; the forward is not waited for."""
        ...

    def finish(self) -> None:
        """Wait until all that was landed is here, so that the device may use its memory again."""
        ...

    def close(self) -> None:
        """Let the memory go; nothing lands any more."""
        ...


class CpuLanding:
    """States stay where they were computed, and are counted."""

    def __init__(self, capacity_bytes: int) -> None:
        self.ring = Ring(capacity_bytes)

    @property
    def unpinned_bytes(self) -> int:
        """All of them: each state has memory of its own."""
        return self.ring.used_bytes

    def land(self, states: torch.Tensor) -> Landed:
        """Return the states as they are, once there is room for so many bytes."""
        return Landed(states, self.ring, self.ring.take(states.nbytes))

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return it as it is."""
        return tensor

    def finish(self) -> None:
        """Return at once."""

    def close(self) -> None:
        """Return at once."""


class SharedLanding:
    """Memory that other processes share, allocated once; a GPU copies into it on a stream of its own.

    CUDA has it pinned: pageable memory takes 1.3 GiB/s on a machine where pinned memory takes 51.

    Args:
        capacity_bytes: size of the memory.
        device: that states come from, `cpu` or `cuda`.

    Attributes:
        ring: which of it is taken.
        memory: all of it.
    """

    def __init__(self, capacity_bytes: int, device: str = "cuda") -> None:
        self.ring = Ring(-(-capacity_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        self.memory = SharedMemory(self.ring.capacity_bytes)
        self._tensor = torch.from_numpy(self.memory.array)
        self._copies = _Copies(self._tensor) if device == "cuda" else None

    @property
    def unpinned_bytes(self) -> int:
        """None: the memory is always there."""
        return 0

    def land(self, states: torch.Tensor) -> Landed:
        """Begin to copy the states."""
        region = self.ring.take(states.nbytes)
        target = self._tensor[region.start : region.start + region.num_bytes].view(states.dtype).view(states.shape)
        if self._copies is None:
            return Landed(target.copy_(states), self.ring, region)
        return Landed(target, self.ring, region, self._copies.begin(target, states))

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it beside what the forward does."""
        return tensor if self._copies is None else self._copies.to_host(tensor)

    def finish(self) -> None:
        """Wait for the last copy."""
        if self._copies is not None:
            self._copies.finish()

    def close(self) -> None:
        """Let the memory go."""
        if self._copies is not None:
            self._copies.close()
        self.memory.close()


class _Copies:
    """From a GPU into memory that this pins, one after the other, beside what else the GPU does."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory = memory
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._last: torch.cuda.Event | None = None
        code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))  # type: ignore[no-untyped-call]
        if code != 0:
            raise LandingError(
                f"CUDA cannot pin {memory.nbytes:,} bytes of memory (error {code}); lower max_in_flight_bytes, or raise"
                " the limit of locked memory (ulimit -l)"
            )

    def begin(self, target: torch.Tensor, states: torch.Tensor) -> torch.cuda.Event:
        self._last = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            target.copy_(states, non_blocking=True)
            self._last.record()
        return self._last

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        with torch.cuda.stream(self._stream):
            return tensor.cpu()

    def finish(self) -> None:
        if self._last is not None:
            self._last.synchronize()

    def close(self) -> None:
        self.finish()
        torch.cuda.cudart().cudaHostUnregister(self._memory.data_ptr())  # type: ignore[no-untyped-call]
