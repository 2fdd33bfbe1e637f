"""What `aerie doctor` looks at of the host: Python, system, cores, memory, limits."""

import importlib.metadata
import os
import platform
import resource
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

from flows.diagnosis import Check, at_least, failed, passed, warned
from flows.progress import format_bytes

DISTRIBUTION = "aerie-hidden-states"
_PYTHON = "Programming Language :: Python :: "
GIB = 1 << 30
# A run of a small model and its engine process on a CPU: up to 6 GiB. Below 2 not even their libraries have room.
LEAST_MEMORY = (2 * GIB, 6 * GIB)
# NCCL, where GPUs share a model, and DataLoader workers hand batches over in it; containers have 64 MiB by default.
LEAST_SHARED = GIB
LEAST_FILES = (256, 1024)
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_host() -> Iterator[Check]:
    """Look at the host; nothing is written."""
    yield judge_python(sys.version_info[:2], platform.python_version())
    yield judge_system(platform.system(), platform.machine())
    yield _check_cores()
    yield _check_memory()
    yield _check_memfd()
    yield _check_shared()
    yield _check_files()


def judge_python(version: tuple[int, int], text: str) -> Check:
    """Say whether this Python is one that is tested."""
    tested = [
        name.removeprefix(_PYTHON)
        for name in importlib.metadata.metadata(DISTRIBUTION).get_all("Classifier") or []
        if name.startswith(_PYTHON)
    ]
    if ".".join(map(str, version)) in tested:
        return passed("Python", text)
    return warned("Python", f"{text}, not tested", f"use Python {' or '.join(tested)}")


def judge_system(system: str, machine: str) -> Check:
    """Say whether this is Linux, on a processor that is tested."""
    library = " ".join(platform.libc_ver()).strip()
    text = f"{system} on {machine}{', ' + library if library else ''}"
    if system != "Linux":
        return failed("system", text, "use Linux: memory is shared by memfd, and GPUs are claimed by abstract sockets")
    if machine != "x86_64":
        return warned("system", f"{text}, not tested", "use x86-64, or run the tests first")
    return passed("system", text)


def _check_cores() -> Check:
    usable, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable}" if usable == there else f"{usable} of {there}"
    cure = "give this process two cores or more: states are encoded beside the forward"
    return at_least("cores", usable, text, (1, 2), cure)


def _check_memory() -> Check:
    memory = psutil.virtual_memory()
    limit = _container_limit()
    total, free = min(memory.total, limit), min(memory.available, limit)
    text = f"{format_bytes(free)} of {format_bytes(total)} free{'' if total == memory.total else ', by the container'}"
    cure = "free some, or take a larger machine; a smaller max_in_flight_bytes saves a little"
    return at_least("memory", free, text, LEAST_MEMORY, cure)


def _container_limit() -> int:
    """Return the memory that a container has, or more than there is."""
    for place in map(Path, _LIMITS):
        text = place.read_text().strip() if place.is_file() else "max"
        if text != "max":
            return int(text)
    return sys.maxsize


def _check_memfd() -> Check:
    """Make shared memory as an engine process does."""
    try:
        descriptor = os.memfd_create("aerie-doctor")
    except (OSError, AttributeError) as error:
        return failed("memfd", str(error), "allow memfd_create: engine and encoders share memory by it")
    os.close(descriptor)
    return passed("memfd", "works")


def _check_shared() -> Check:
    name = "/dev/shm"  # noqa: S108 - it is only asked for its size
    place = Path(name)
    if not place.is_dir():
        return warned(name, "missing", "mount one: NCCL and the workers of DataLoader need it")
    total = shutil.disk_usage(place).total
    cure = "enlarge it (docker run --shm-size=8g): NCCL and the workers of DataLoader need it"
    return at_least(name, total, format_bytes(total), (0, LEAST_SHARED), cure)


def _check_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return passed("open files", "no limit")
    return at_least("open files", soft, f"{soft:,}, at most {hard:,}", LEAST_FILES, f"ulimit -n {LEAST_FILES[1]}")
