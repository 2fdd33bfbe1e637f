"""How fast the adapters feed a training loop by two workers or two threads, beside the store read alone by two threads.

    nice -n 5 python benchmarks/feeding.py FOLDER

FOLDER gets a store of 2 GB, which stays there for the next time. The batches are the same for all, of 8,192 tokens
with their padding; GB/s are of states without it. The loop only looks at each batch, as one would that trains on a GPU.
Seconds of the CPU are those of this process and of its workers: a busy machine disturbs them less.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt
import psutil
from record import write_result
from synthetic_stores import make_spec, make_store

from storage import TokensSpec, open_store
from storage.adapters import Adapter, ModelOptAdapter, SpecForgeAdapter, SpeculatorsAdapter
from storage.dataset import HiddenStateDataset, HiddenStateLoader
from storage.epochs import BatchRules
from storage.hashes import names_of
from storage.samplers import TokenBatchSampler
from storage.specs import LayerId
from storage.tokens import TokensWriter, open_tokens

# As a run captures that serves all three trainers: the last two are before and after the norm of 32 blocks.
CAPTURED: tuple[LayerId, ...] = (2, 16, 29, 32, "final")
BEFORE: tuple[LayerId, ...] = (2, 16, 29, 32)
AFTER: tuple[LayerId, ...] = (2, 16, 29, "final")
HIDDEN_SIZE, NUM_SAMPLES, LONGEST = 4096, 64, 2048
RULES = BatchRules(max_tokens=8192)
WORKERS, ROUNDS = 2, 7
ALONE = ("read alone", "read alone into used memory")
TOKENS = TokensSpec(("data",), "tokenizer", "template")


def main() -> None:
    """Make the store if it is not there, measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    store = arguments.folder / "feeding"
    prepare(store)
    print(write_result("feeding", measure(store, arguments.rounds)))


def prepare(path: Path) -> None:
    """Make a store of random samples, with a tokens artifact over them."""
    if open_tokens_or_none(path) is not None:
        return
    lengths = np.random.default_rng(0).integers(100, LONGEST, NUM_SAMPLES).tolist()
    make_store(path, make_spec(HIDDEN_SIZE, CAPTURED), lengths, packed=True)
    with TokensWriter(path, TOKENS) as writer:
        for number, sample in enumerate(open_store(path).values()):
            writer.append(sample.input_ids, np.ones(sample.num_tokens, np.uint8), number)
        writer.commit()


def open_tokens_or_none(path: Path) -> object:
    """Return the tokens artifact, if the store is there with it."""
    return open_tokens(path, TOKENS.digest()) if path.exists() else None


def measure(path: Path, rounds: int) -> dict[str, Any]:
    """Read all samples once a round, in each way, after a round that does not count."""
    work = make_work(path)
    seconds: dict[str, list[Seconds]] = {name: [] for name in work}
    for number in range(rounds + 1):
        for name, do in list(work.items())[:: -1 if number % 2 else 1]:
            seconds[name] += [time_of(do)] if number else []
    gigabytes = int(open_dataset(path, AFTER).lengths.sum()) * len(AFTER) * HIDDEN_SIZE * 2 / 1e9
    rates = {
        name: {clock: gigabytes / statistics.median(each[i] for each in of) for i, clock in enumerate(Seconds._fields)}
        for name, of in seconds.items()
    }
    figures = {"gigabytes": gigabytes, "workers": WORKERS, "cores": len(os.sched_getaffinity(0)), "per_second": rates}
    for alone in ALONE:
        figures[f"to {alone}"] = {
            name: to_each(of, seconds[alone]) for name, of in seconds.items() if name not in ALONE
        }
    return figures


class Seconds(NamedTuple):
    """By the clock on the wall, and of this process and its workers on the CPU."""

    wall: float
    cpu: float


def time_of(do: Callable[[], object]) -> Seconds:
    """Do it and return how long it took."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    do()
    return Seconds(time.perf_counter() - wall, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """Return what this process and its workers have had, whether these live or are gone."""
    process = psutil.Process()
    own = process.cpu_times()
    living = [child.cpu_times() for child in process.children()]
    mine = own.user + own.system + own.children_user + own.children_system
    return float(mine + sum(times.user + times.system for times in living))


def to_each(ours: list[Seconds], theirs: list[Seconds]) -> dict[str, float]:
    """Return how fast ours is where theirs is 1: the median of the rounds' ratios."""
    pairs = list(zip(ours, theirs, strict=True))
    return {clock: statistics.median(b[i] / a[i] for a, b in pairs) for i, clock in enumerate(Seconds._fields)}


def make_work(path: Path) -> dict[str, Callable[[], object]]:
    """Return what is measured: the adapters, and reading alone."""
    work: dict[str, Callable[[], object]] = {}
    for name, layers, make in ADAPTERS:
        dataset = open_dataset(path, layers)
        for workers in ("threads", "workers"):
            work[f"{name}, {workers}"] = partial(feed, make_loader(dataset, make(dataset), workers))
    dataset = open_dataset(path, AFTER)
    most = max(int(dataset.lengths[batch].sum()) for batch in sampler_of(dataset))
    used = np.ones((len(AFTER), most, HIDDEN_SIZE), np.uint16).view(ml_dtypes.bfloat16)
    return {
        **work,
        ALONE[0]: partial(read_alone, dataset, None),
        ALONE[1]: partial(read_alone, dataset, used),
    }


def open_dataset(path: Path, layers: tuple[LayerId, ...]) -> HiddenStateDataset:
    """Open the rows as a training loop would that is in a hurry."""
    return HiddenStateDataset(path, TOKENS.digest(), layers=layers, reuse_memory=True)


ADAPTERS: list[tuple[str, tuple[LayerId, ...], Callable[[HiddenStateDataset], Adapter | None]]] = [
    ("pad_batch", AFTER, lambda _: None),
    ("SpecForge", AFTER, partial(SpecForgeAdapter, max_length=LONGEST)),
    ("speculators", BEFORE, partial(SpeculatorsAdapter, max_length=RULES.max_tokens)),
    ("ModelOpt", AFTER, partial(ModelOptAdapter, train_length=LONGEST)),
]


def sampler_of(dataset: HiddenStateDataset) -> TokenBatchSampler:
    """Return the batches of the first epoch."""
    return TokenBatchSampler(dataset.hashes, dataset.lengths, RULES)


def read_alone(dataset: HiddenStateDataset, out: npt.NDArray[Any] | None) -> None:
    """Read the batches one after the other, on as many threads as there are workers, and nothing else."""
    for batch in sampler_of(dataset):
        names = names_of(dataset.hashes[batch])
        dataset.store.read_hidden_states(names, dataset.layers, threads=WORKERS, out=out)


def make_loader(dataset: HiddenStateDataset, adapter: Adapter | None, workers: str) -> HiddenStateLoader:
    """Return a loader that makes the batches of an adapter by threads or by worker processes, which stay."""
    options: dict[str, Any] = {} if adapter is None else {"collate_fn": adapter.collate}
    if workers == "workers":
        options["persistent_workers"] = True
    return HiddenStateLoader(dataset, sampler_of(dataset), **{f"num_{workers}": WORKERS}, **options)


def feed(loader: HiddenStateLoader) -> None:
    """Take the batches of an epoch; the first one, which does not count, starts the workers."""
    for batch in loader:
        batch["input_ids"].sum()


if __name__ == "__main__":
    main()
