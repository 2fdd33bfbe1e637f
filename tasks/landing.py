"""Where states come to the host: pinned memory that a GPU copies into, or where the CPU has computed them."""

from typing import Any, Protocol

import torch

from tasks.ring import Region, Ring


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


class PinnedLanding:
    """Pinned memory, allocated once, that the GPU copies into on a stream of its own.

    Pageable memory takes 1.3 GiB/s on a machine where pinned memory takes 51.

    Args:
        capacity_bytes: size of the memory; torch pins a power of two, so it is rounded up to one.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.ring = Ring(1 << (capacity_bytes - 1).bit_length())
        self._memory = torch.empty(self.ring.capacity_bytes, dtype=torch.uint8, pin_memory=True)
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._last: torch.cuda.Event | None = None

    @property
    def unpinned_bytes(self) -> int:
        """None: the memory is always there."""
        return 0

    def land(self, states: torch.Tensor) -> Landed:
        """Begin to copy the states."""
        region = self.ring.take(states.nbytes)
        target = self._memory[region.start : region.start + region.num_bytes].view(states.dtype).view(states.shape)
        self._last = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            target.copy_(states, non_blocking=True)
            self._last.record()
        return Landed(target, self.ring, region, self._last)

    def to_host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy it beside what the forward does."""
        with torch.cuda.stream(self._stream):
            return tensor.cpu()

    def finish(self) -> None:
        """Wait for the last copy; the stream does one after the other."""
        if self._last is not None:
            self._last.synchronize()


def make_landing(device: Any, capacity_bytes: int) -> Landing:
    """Return the landing for an engine on a device: `cpu` or `cuda`."""
    return PinnedLanding(capacity_bytes) if device == "cuda" else CpuLanding(capacity_bytes)
