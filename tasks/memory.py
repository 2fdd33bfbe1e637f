"""Memory of an engine process: how much it had at most, and whether it grows from unit to unit."""

import contextlib
import resource

import psutil
import torch

# A right engine's memory stays flat; what the allocators keep back differs from unit to unit by far less than this.
DEFAULT_SHARE = 16


class MemoryWatch:
    """Compares what this process and its ranks hold after each unit with what they held after the first.

    Args:
        max_growth_bytes: growth that is allowed, of memory and of GPU memory each; None is a sixteenth of what the
            machine and the GPU have.
    """

    def __init__(self, max_growth_bytes: int | None) -> None:
        self._limits = {
            "memory": max_growth_bytes or psutil.virtual_memory().total // DEFAULT_SHARE,
            "GPU memory": max_growth_bytes or _device_total() // DEFAULT_SHARE,
        }
        self._first: dict[str, int] | None = None

    def outgrown(self, in_flight_bytes: int = 0) -> str:
        """Say what has grown past its limit, or nothing: call it after each unit.

        Args:
            in_flight_bytes: memory of states that are being written, which will be free again.
        """
        now = {"memory": _process_bytes() - in_flight_bytes, "GPU memory": _device_bytes()}
        if self._first is None:
            self._first = now
        for name, limit in self._limits.items():
            growth = now[name] - self._first[name]
            if growth > limit:
                return f"{name} grew by {growth:,} bytes since its first unit, the limit is {limit:,}"
        return ""

    def peak_memory_bytes(self) -> int:
        """Return the most memory that this process has had resident."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB

    def peak_device_bytes(self) -> int:
        """Return the most memory that torch has had in tensors on the GPU."""
        return torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0


def _process_bytes() -> int:
    """Return the memory of this process and its children, without what files back: weights may be mapped."""
    process = psutil.Process()
    total = 0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):  # a compiler that has ended
            memory = one.memory_info()
            total += memory.rss - getattr(memory, "shared", 0)
    return total


def _device_bytes() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def _device_total() -> int:
    return torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 0
