"""What `aerie doctor` looks at of the place for a store: what is there, room, and how fast it takes what is written."""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from flows.diagnosis import Check, at_least, failed, passed
from flows.job import check_store_place
from flows.progress import format_bytes
from flows.run_reports import is_store
from storage.errors import StorageError
from storage.files import backend_of
from storage.paths import ObjectPath, StorePath
from storage.store import spec_digests

GB = 1_000_000_000
LEAST_FREE = (GB, 20 * GB)
# An H200 with Llama-3.1-8B makes 0.8 GB/s of stored states; a CPU 1 MB/s (docs/performance.md).
LEAST_RATE_BY_GPU, LEAST_RATE = 800_000_000, 20_000_000
PROBE_BYTES, PROBE_SECONDS = 256 << 20, 5.0
_BLOCK = 16 << 20


def check_store(place: StorePath, num_gpus: int, *, is_named: bool = True, writes: bool = True) -> Iterator[Check]:
    """Look at the place of a store, which need not be there yet; nothing stays behind.

    Args:
        place: a folder or a place in a bucket.
        num_gpus: that are to fill it.
        is_named: whether it is that of a store, and not any folder of the disk.
        writes: measure how fast a folder's disk is.
    """
    try:
        yield _look(place) if is_named else passed("store", "none is named")
    except StorageError as error:
        value, _, cure = str(error).partition("; ")
        yield failed("store", value, cure or "choose another place")
        return
    if isinstance(place, ObjectPath):
        return
    folder = _existing(place.absolute())
    yield _check_room(folder)
    if writes:
        yield _check_rate(folder, num_gpus)


def measure_rate(folder: Path, num_bytes: int = PROBE_BYTES, seconds: float = PROBE_SECONDS) -> tuple[int, float]:
    """Write into a file that has no name, block by block, each brought to disk; stop after some seconds.

    Returns:
        Bytes written, and the seconds that took.

    Raises:
        OSError: the disk is full or refuses.
    """
    block = os.urandom(_BLOCK)  # which no disk compresses
    written, began = 0, time.monotonic()
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        while written < num_bytes and (written == 0 or time.monotonic() - began < seconds):
            written += file.write(block)
            os.fdatasync(file.fileno())
        taken = time.monotonic() - began
    return written, taken


def _look(place: StorePath) -> Check:
    check_store_place(place)
    if not is_store(place):
        return passed("store", f"{place}: none yet")
    num = len(spec_digests(place))
    return passed("store", f"{place}: a store with states of {num} spec{'' if num == 1 else 's'}")


def _check_room(folder: Path) -> Check:
    free = backend_of(folder).free_bytes(folder) or 0
    cure = "free some, or choose another disk; aerie plan says what a run needs"
    return at_least("room", free, f"{format_bytes(free)} free", LEAST_FREE, cure)


def _check_rate(folder: Path, num_gpus: int) -> Check:
    try:
        written, seconds = measure_rate(folder)
    except OSError as error:
        return failed("disk", f"{folder}: {error.strerror}", "free some room, or choose another disk")
    rate, least = written / seconds, LEAST_RATE_BY_GPU * num_gpus if num_gpus else LEAST_RATE
    text = f"{format_bytes(rate)}/s synced ({format_bytes(written)} in {seconds:.1f} s)"
    cure = f"choose a faster disk: {format_bytes(least)}/s of states may be made, engines wait for the rest"
    return at_least("disk", rate, text, (0, least), cure)


def _existing(place: Path) -> Path:
    """Return the folder, or the one above it that is there."""
    return next(folder for folder in (place, *place.parents) if folder.is_dir())
