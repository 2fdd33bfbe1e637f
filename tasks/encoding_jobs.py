"""What a process that encodes and its parent say to each other; states lie in memory that they share."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.objects import ObjectInfo
from tasks import messages

# Beside a CPU's forward more would have nothing to do. Beside a GPU's there are more of them than cores: those of one
# process wait for each other's turn of the interpreter (docs/performance.md).
MOST_THREADS = {"cpu": 8, "cuda": 24}
_THREADS_PER_CORE = {"cpu": 1, "cuda": 2}


def default_threads(device: str, cores: int) -> int:
    """Return how many encoders an engine on a device has, if so many cores are for it."""
    return max(1, min(MOST_THREADS[device], cores * _THREADS_PER_CORE[device]))


@dataclass(frozen=True, slots=True)
class Setup:
    """First message: where samples go, by how many threads, whether states come split, and whether times are kept."""

    store: str
    spec_digest: str
    threads: int
    takes_split: bool
    keeps_spans: bool
    memory_fd: int
    memory_bytes: int
    parent_pid: int


@dataclass(frozen=True, slots=True)
class Job:
    """Store a sample: its ids, and its states at `start` of the shared memory, in this dtype and shape."""

    number: int
    input_ids: npt.NDArray[np.int32]
    start: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """What a thread did, by `time.monotonic`, which all processes of a host share."""

    name: str
    began: float
    seconds: float
    thread: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """The states of a job are not needed any more; the disk has yet to take what became of them."""

    number: int


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a job: the sample is in the store, or why it is not."""

    number: int
    info: ObjectInfo | None
    failure: messages.Failed | None
    cpu_seconds: float
    spans: list[Span]
