"""What the disk of a folder takes: bytes, and commits of samples."""

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from synthetic_stores import make_samples, make_spec

from storage import init_store
from storage.objects import ObjectWriter
from storage.store import add_spec

DISK_FILES = 8
COMMITS_A_THREAD = 20


def measure_disk(folder: Path, num_bytes: int) -> dict[str, float]:
    """Write so many random bytes into a few files at once, each synced, and remove them."""
    piece = os.urandom(1 << 20)
    count = max(1, num_bytes // DISK_FILES // len(piece))

    def write(number: int) -> None:
        with (folder / f"disk-{number}").open("wb") as file:
            for _ in range(count):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    began = time.perf_counter()
    with ThreadPoolExecutor(DISK_FILES) as pool:
        list(pool.map(write, range(DISK_FILES)))
    seconds = time.perf_counter() - began
    for number in range(DISK_FILES):
        (folder / f"disk-{number}").unlink()
    return {"stored_gb_per_second": DISK_FILES * count * len(piece) / seconds / 1e9, "seconds": seconds}


def measure_commits(folder: Path, threads: int) -> float:
    """Return how many samples of one token a second can be committed: what each costs beside its bytes."""
    spec = make_spec(8)
    init_store(folder)
    add_spec(folder, spec)
    writer = ObjectWriter(folder, spec)
    samples = list(make_samples(spec, [1] * (COMMITS_A_THREAD * threads)))
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda sample: writer.write(*sample), samples))
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return len(samples) / seconds
