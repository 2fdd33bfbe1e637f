"""How fast a store becomes files of trainers: beside the decoding alone, and beside the disk alone.

    nice -n 5 python benchmarks/export.py FOLDER

FOLDER, on the disk to be measured, gets a store of 1.1 GB, which stays there for the next time, and up to 1.6 GB of
files at a time. What is compared takes turns; the store is in the page cache, and all that is written is on disk at the
end of each turn. `to_the_slower` is the rate of an export over that of the decoding or the disk, whichever is lower;
`cpu_to_both` what these two take of the CPU, together, over what the export takes: a busy machine disturbs it less.
"""

import argparse
import os
import shutil
import statistics
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from disks import measure_disk
from record import write_result
from synthetic_stores import make_spec, make_store
from turns import Times, speed_ratio, take_turns

from storage import Store, TokensSpec, open_store
from storage.tokens import TokensWriter
from tasks.trainer_files.exporter import export_rows
from tasks.trainer_files.formats import FORMATS
from tasks.trainer_files.plan import ExportPlan
from tasks.trainer_files.requests import ExportRequest, make_export_plan

HIDDEN_SIZE, NUM_SAMPLES = 4096, 48
ROUNDS = 5
CORES = len(os.sched_getaffinity(0))
# Both states of the last layer, so that each format finds its own.
LAYERS = (2, 16, 29, 32, "final")


def main() -> None:
    """Make the store if it is not there, measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--note", help="what else the machine did")
    arguments = parser.parse_args()
    prepare(arguments.folder / "store")
    figures = measure(arguments.folder, arguments.rounds)
    print(write_result("export", {"note": arguments.note, **figures}))


def prepare(path: Path) -> None:
    """Make a packed store with a tokens artifact, if there is none."""
    if path.exists():
        return
    lengths = np.random.default_rng(0).integers(100, 2000, NUM_SAMPLES).tolist()
    make_store(path, make_spec(HIDDEN_SIZE, LAYERS), lengths, packed=True)
    with TokensWriter(path, TokensSpec(("random",), "none", "none")) as writer:
        for number, sample in enumerate(open_store(path).values()):
            writer.append(sample.input_ids, np.ones(sample.num_tokens, np.uint8), number)
        writer.commit()


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    """Export to each format, beside decoding the same layers and writing as many bytes."""
    figures: dict[str, Any] = {}
    for name in FORMATS:
        plan = make_export_plan(ExportRequest(folder / "store", name, folder / "files"))
        times = take_turns(_work(plan, folder), rounds, before=lambda _: shutil.rmtree(folder / "files", True))
        shutil.rmtree(folder / "files", ignore_errors=True)
        figures[name] = _compare(times, plan)
    return figures


def _work(plan: ExportPlan, folder: Path) -> dict[str, Callable[[], object]]:
    return {
        "export": partial(export_rows, plan),
        "decode": partial(_decode, plan.store, plan.choice.layers),
        "disk": partial(measure_disk, folder, plan.num_bytes),
    }


def _decode(store: Store, layers: tuple[Any, ...]) -> None:
    """Decode all samples into fresh memory, as many at a time as there are threads."""
    names = iter(store)
    while batch := list(islice(names, CORES)):
        store.read_hidden_states(batch, layers, threads=CORES)


def _compare(times: dict[str, Times], plan: ExportPlan) -> dict[str, Any]:
    ratios = {name: speed_ratio(times["export"], times[name])["wall"] for name in ("decode", "disk")}
    both = [decode + disk for decode, disk in zip(times["decode"].cpu, times["disk"].cpu, strict=True)]
    gigabytes = plan.num_bytes / 1e9
    return {
        "gigabytes": gigabytes,
        "rate": {name: found.rate(gigabytes) for name, found in times.items()},
        "to": ratios,
        "to_the_slower": max(ratios.values()),
        "cpu_to_both": statistics.median(b / a for a, b in zip(times["export"].cpu, both, strict=True)),
    }


if __name__ == "__main__":
    main()
