"""What a process that encodes and its parent say to each other; states lie in memory that they share."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from storage.objects import ObjectInfo
from tasks import messages


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
class Done:
    """What became of a job: the sample is in the store, or why it is not; its states are not needed any more."""

    number: int
    info: ObjectInfo | None
    failure: messages.Failed | None
    cpu_seconds: float
    spans: list[Span]
