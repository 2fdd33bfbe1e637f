"""How fast loose objects become packs, and packs one pack, beside `cp` of the same bytes.

    nice -n 5 python benchmarks/compaction.py FOLDER [--samples 60] [--rounds 7]

FOLDER, on the disk to be measured, gets 6 GB for the time it runs. `cp` is `cp -r` of the folders with the states, then
fsync of each file and folder of the copy. Compaction copies, brings to disk, reads back from the disk, checks, and
removes what it copied, which `cp` does not. Both begin with the same files, warm (in the page cache) or cold (not in
it), and take turns, each first in every second round. Of a ratio the median of the rounds' ratios is told.
"""

import argparse
import os
import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from file_formats import drop_cache, folder_bytes
from record import write_result
from synthetic_stores import make_samples, make_spec
from turns import Times, speed_ratio

from storage import init_store
from storage.layout import objects_folder, packs_folder
from storage.objects import ObjectWriter
from storage.pack_listing import open_packs
from storage.packs import Compaction
from storage.store import add_spec

SPEC = make_spec(4096)
DIGEST = SPEC.digest()
NUM_PACKS = 8


def main() -> None:
    """Measure loose objects and packs, warm and cold, and write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    lengths = np.random.default_rng(0).integers(500, 1500, arguments.samples).tolist()
    figures: dict[str, Any] = {"samples": len(lengths), "tokens": sum(lengths)}
    templates = {"loose": arguments.folder / "loose", "packs": arguments.folder / "packs"}
    make_templates(templates["loose"], templates["packs"], lengths)
    figures["disk"] = measure_size(templates["packs"])
    for kind, template in templates.items():
        for state in ("warm", "cold"):
            figures[f"{kind}_{state}"] = figure = measure(template, kind, state, arguments.rounds)
            print(kind, state, figure, flush=True)
            write_result("compaction", figures)
    shutil.rmtree(arguments.folder)


def make_templates(loose: Path, packs: Path, lengths: list[int]) -> None:
    """Make a store of loose objects, and one of as many samples in several packs."""
    for path in (loose, packs):
        init_store(path)
        add_spec(path, SPEC)
    for number, sample in enumerate(make_samples(SPEC, lengths)):
        ObjectWriter(loose, SPEC).write(*sample)
        ObjectWriter(packs, SPEC).write(*sample)
        if number * NUM_PACKS // len(lengths) < (number + 1) * NUM_PACKS // len(lengths):
            Compaction(packs, SPEC).pack_loose()
    os.sync()


def measure_size(store: Path) -> dict[str, float]:
    """Return how much more packed samples take on disk than their encoded chunks."""
    packs = open_packs(store, SPEC)
    encoded = sum(int(pack.encoded_bytes().sum()) for pack in packs)
    stored, count = folder_bytes(packs_folder(store, DIGEST)), sum(map(len, packs))
    return {"encoded_bytes": encoded, "stored_bytes": stored, "more_bytes_a_sample": (stored - encoded) / count}


def measure(template: Path, kind: str, state: str, rounds: int) -> dict[str, Any]:
    """Time `cp` and compaction of copies of a store; the first round does not count."""
    times = {"cp": Times(), "compact": Times()}
    work = {"cp": copy_states, "compact": pack_loose if kind == "loose" else merge_packs}
    num_bytes = folder_bytes(states_of(template))
    for number in range(rounds + 1):
        for name in sorted(work, reverse=bool(number % 2)):
            store = Path(shutil.copytree(template, template.with_name("work")))
            os.sync()
            (drop_cache if state == "cold" else read_all)(store)
            wall, cpu = timed(work[name], store)
            shutil.rmtree(store)
            if number:
                times[name].wall.append(wall)
                times[name].cpu.append(cpu)
    rates = {f"{name}_bytes": times[name].rate(num_bytes) for name in times}
    return {"bytes": num_bytes, **rates, "speed_ratio": speed_ratio(times["compact"], times["cp"]), "rounds": rounds}


def timed(work: Callable[[Path], object], store: Path) -> tuple[float, float]:
    """Return seconds by the clock on the wall, and on the CPU, those of child processes included."""
    started, before = time.perf_counter(), cpu_seconds()
    work(store)
    return time.perf_counter() - started, cpu_seconds() - before


def cpu_seconds() -> float:
    """Return seconds on the CPU of this process and of those that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def copy_states(store: Path) -> None:
    """Copy by `cp`, and bring the copy to disk."""
    copy = store / "copy"
    subprocess.run(["cp", "-r", states_of(store), copy], check=True)  # noqa: S603, S607 - as a user would
    for path in (copy, *copy.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def pack_loose(store: Path) -> None:
    """Pack loose objects."""
    Compaction(store, SPEC).pack_loose()


def merge_packs(store: Path) -> None:
    """Make one pack of all."""
    Compaction(store, SPEC).merge(open_packs(store, SPEC))


def states_of(store: Path) -> Path:
    """Return the folder with the states."""
    loose = objects_folder(store, DIGEST)
    return loose if loose.exists() and any(loose.glob("*/*")) else packs_folder(store, DIGEST)


def read_all(folder: Path) -> None:
    """Have all files in the page cache."""
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as source:
                while source.read(1 << 20):
                    pass


if __name__ == "__main__":
    main()
