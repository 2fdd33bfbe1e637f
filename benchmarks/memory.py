"""Whether a long run's resident memory stays flat: `aerie extract` for ten minutes, looked at every two seconds.

    python benchmarks/memory.py FOLDER                               # on a GPU: the Llama-8B shape
    python benchmarks/memory.py FOLDER --device cpu --small --seconds 20

States of ten minutes fill most disks, so what is committed is removed meanwhile, and the run is told that there is room
for all. Then Ctrl-C. Memory is the proportional set size of the run's process, its engine and its encoders together:
pages that several of them map, such as the ring that the GPU copies into, count once.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
from extraction_models import make_model
from long_run import add_tokenizer, write_data
from record import RESULTS, ROOT, write_result

from tasks.engine.models import read_model

_LOOK_SECONDS = 2.0
_KEPT_SECONDS = 10.0  # how old an object is when it goes: nothing of the run still has to do with it
_WITHOUT_A_LIMIT = """
from storage.file_system import FileSystem
FileSystem.free_bytes = lambda self, root: 1 << 50  # what is committed is removed meanwhile
from flows.cli import main
import sys
sys.exit(main())
"""


def main(arguments: list[str] | None = None) -> None:
    """Run it, print and write what came out."""
    given = _parse(arguments)
    given.folder.mkdir(parents=True)
    try:
        model = make_model(given.model, given.folder / "model", small=given.small)
        if not given.small:
            add_tokenizer(model)
        data = write_data(given.folder / "data.parquet", given.samples, given.mean_tokens, read_model(model).vocab_size)
        figures = watch_run(given, model, data)
    finally:
        shutil.rmtree(given.folder, ignore_errors=True)
    print(json.dumps({key: value for key, value in figures.items() if key != "minutes"}, indent=1), flush=True)
    write_result("memory", figures, given.results)


def watch_run(given: argparse.Namespace, model: Path, data: Path) -> dict[str, Any]:
    """Extract for so many seconds from the first committed sample on; return memory by process and minute."""
    store = given.folder / "store"
    flags: dict[str, object] = {"model": model, "data": data, "store": store, "compact": "false"}
    flags["devices"] = "cpu" if given.device == "cpu" else "auto"
    if given.batch_tokens:
        flags["max-batch-tokens"] = given.batch_tokens
    command = [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    aerie = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-c", _WITHOUT_A_LIMIT, "extract", *command], start_new_session=True, env=environment
    )
    looks, removed = _watch(aerie, store, given.seconds)
    if aerie.poll() is None:
        os.killpg(aerie.pid, signal.SIGINT)
    code = aerie.wait()
    [folder] = store.glob("runs/*")
    return describe(looks, given.minute_seconds) | _describe_report(folder) | {"removed": removed, "exit_code": code}


def _watch(aerie: subprocess.Popen[bytes], store: Path, seconds: float) -> tuple[list[dict[str, int]], int]:
    """Look at memory, and remove what is committed, until the time is over or the run is."""
    looks: list[dict[str, int]] = []
    removed, began = 0, 0.0
    while aerie.poll() is None and (not began or time.monotonic() - began < seconds):
        time.sleep(_LOOK_SECONDS if began else 0.1)
        if began:
            looks.append(measure_memory(psutil.Process(aerie.pid)))
            removed += _remove_old(store)
        elif any(store.glob("objects/*/*/*")):
            began = time.monotonic()
    return looks, removed


def measure_memory(root: psutil.Process) -> dict[str, int]:
    """Return bytes (proportional set size) by kind of process, of a process and all that come from it."""
    found: dict[str, int] = defaultdict(int)
    for process in [root, *root.children(recursive=True)]:
        try:
            found[_kind(process, root)] += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue  # one that ended meanwhile, such as a compiler
    return dict(found)


def _kind(process: psutil.Process, root: psutil.Process) -> str:
    """Return `run`, `engine`, `encoders` or `server` (the run's own, of Prefect), or the name of another program."""
    if process.pid == root.pid:
        return "run"
    command = " ".join(process.cmdline())
    kinds = {"prefect.server": "server", "tasks.encoder": "encoders", "tasks.worker": "engine"}
    return next((kind for module, kind in kinds.items() if module in command), process.name())


def _remove_old(store: Path) -> int:
    """Remove objects that were committed a while ago; returns how many."""
    limit = time.time() - _KEPT_SECONDS
    old = [folder for folder in store.glob("objects/*/*/*") if folder.stat().st_mtime < limit]
    for folder in old:
        shutil.rmtree(folder, ignore_errors=True)
    return len(old)


def describe(looks: list[dict[str, int]], minute_seconds: float = 60.0) -> dict[str, Any]:
    """Return medians by minute, and how much the last one is over the second: the first is left to warming up."""
    size = max(1, round(minute_seconds / _LOOK_SECONDS))
    chunks = [looks[start : start + size] for start in range(0, len(looks), size)]
    minutes = [_medians(chunk) for chunk in chunks if len(chunk) * 2 >= size]
    growth = {kind: minutes[-1].get(kind, 0) - minutes[1].get(kind, 0) for kind in minutes[-1]}
    return {
        "watched_seconds": len(looks) * _LOOK_SECONDS,
        "growth_bytes": growth,
        "growth_share": growth["total"] / minutes[1]["total"],
        "peak_bytes": max(sum(look.values()) for look in looks),
        "minutes": minutes,
    }


def _medians(looks: list[dict[str, int]]) -> dict[str, int]:
    kinds = {kind for look in looks for kind in look}
    medians = {kind: int(statistics.median(look.get(kind, 0) for look in looks)) for kind in sorted(kinds)}
    return medians | {"total": int(statistics.median(sum(look.values()) for look in looks))}


def _describe_report(folder: Path) -> dict[str, Any]:
    report = json.loads((folder / "report.json").read_text())
    keys = ("status", "rows", "tokens_computed", "seconds", "engines")
    return {key: report[key] for key in keys if key in report}


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where all is made, and removed")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--seconds", type=float, default=600.0, help="from the first committed sample on")
    parser.add_argument("--minute-seconds", type=float, default=60.0, help="a small run's minutes are shorter")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--batch-tokens", type=int)
    parser.add_argument("--small", action="store_true", help="the tests' tiny model and short samples")
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args(arguments)
    given.samples = given.samples or (20_000 if given.small else 15_000)
    given.mean_tokens = 100 if given.small else 1730
    given.batch_tokens = given.batch_tokens or (200 if given.small else None)
    return given


if __name__ == "__main__":
    main()
