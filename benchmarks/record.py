"""Results of benchmarks, one JSON file a benchmark and machine, with all that it takes to judge and repeat them."""

import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pynvml  # type: ignore[import-untyped]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("torch", "triton", "sglang", "transformers", "compressed-tensors", "zarr", "numcodecs", "numpy", "prefect")
# A list of plain values, of which hundreds of lines would be made.
_LIST = re.compile(r"\[\n[^][{}]*\]")
# The commit of a copy of the tree on another machine, whose git may know an older one.
COMMIT_VARIABLE = "BENCHMARK_COMMIT"


def write_result(name: str, figures: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write `<folder>/<name>-<machine>.json`: the figures, and machine, command, date, commit and versions.

    A file that is there is replaced at once and whole, so a benchmark may call this after each figure.
    """
    machine = describe_machine()
    file = folder / f"{name}-{machine['name']}.json"
    document = {"benchmark": name, "machine": machine, **describe_run(), "figures": figures}
    folder.mkdir(parents=True, exist_ok=True)
    staging = file.with_name(f".{file.name}.{os.getpid()}")
    staging.write_text(_LIST.sub(_join_lines, json.dumps(document, indent=1)) + "\n")
    staging.replace(file)
    return file


def read_results(name: str, folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Return what `write_result` wrote under this name, one document a machine, by the machine's name."""
    documents = (json.loads(file.read_bytes()) for file in sorted(folder.glob(f"{name}-*.json")))
    return [document for document in documents if document["benchmark"] == name]


def median_of(measure: Callable[[], float], repeats: int = 5) -> dict[str, float]:
    """Call `measure` as often and return the median of what it returned, the extremes and the number of calls."""
    values = [measure() for _ in range(repeats)]
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "repeats": repeats}


def describe_run() -> dict[str, Any]:
    """Return command, UTC date, commit and versions of this process, without a path of this machine."""
    return {
        "command": " ".join(["python", *map(_without_path, sys.argv)]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": find_commit(),
        "versions": {"python": platform.python_version()} | _package_versions(),
    }


def find_commit() -> str | None:
    """Return the commit of the tree, with `+` where tracked files differ from it; BENCHMARK_COMMIT instead if set."""
    if COMMIT_VARIABLE in os.environ:
        return os.environ[COMMIT_VARIABLE]
    try:
        head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if _besides_results(changes) else "")


def describe_machine() -> dict[str, Any]:
    """Return what kind of machine this is, and nothing that tells which one; `name` is for the names of files."""
    gpus, driver = _gpus()
    cores = len(os.sched_getaffinity(0))
    return {
        "name": _machine_name(gpus, cores),
        "cpu": _cpu_model(),
        "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "gpus": gpus,
        "driver": driver,
    }


def _machine_name(gpus: list[str], cores: int) -> str:
    if not gpus:
        return f"cpu-{cores}-cores"
    model = re.sub(r"[^a-z0-9]+", "-", gpus[0].lower()).strip("-")
    return model if len(gpus) == 1 else f"{model}-x{len(gpus)}"


def _gpus() -> tuple[list[str], str | None]:
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return [], None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return [pynvml.nvmlDeviceGetName(handle) for handle in handles], pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


def _cpu_model() -> str:
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else platform.machine()


def _package_versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue  # a benchmark of the store needs no engine
    return found


def _git(*arguments: str) -> str:
    ran = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603, S607 - git, as the user's shell would find it
    return ran.stdout.rstrip("\n")


def _besides_results(changes: str) -> list[str]:
    # A benchmark changes its own results, and the pages made of them, while it runs.
    return [line for line in changes.splitlines() if not line[3:].startswith(("benchmarks/results/", "docs/"))]


def _join_lines(match: re.Match[str]) -> str:
    return re.sub(r"\n *", " ", match[0]).replace("[ ", "[").replace(" ]", "]")


def _without_path(argument: str) -> str:
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
