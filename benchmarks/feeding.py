"""How fast the adapters feed a training loop through two workers, beside the store read alone by two threads.

    nice -n 5 python benchmarks/feeding.py FOLDER

FOLDER gets a store of 2 GB, which stays there for the next time. The batches are the same for all, of 8,192 tokens
with their padding; GB/s are of states without it. The loop only looks at each batch, as one would that trains on a GPU.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from record import write_result
from synthetic_stores import make_spec, make_store
from turns import speed_ratio, take_turns

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
    """Read all samples once a round, in each way."""
    work: dict[str, Callable[[], object]] = {}
    for name, layers, make in ADAPTERS:
        dataset = HiddenStateDataset(path, TOKENS.digest(), layers=layers)
        adapter = make(dataset)
        work[f"{name}, read alone"] = partial(read_alone, dataset)
        work[name] = partial(feed, dataset, adapter)
    times = take_turns(work, rounds)
    gigabytes = dataset.lengths.sum() * len(AFTER) * HIDDEN_SIZE * 2 / 1e9
    return {
        "gigabytes": float(gigabytes),
        "workers": WORKERS,
        "cores": len(os.sched_getaffinity(0)),
        "fed": {name: times[name].rate(gigabytes) for name, *_ in ADAPTERS},
        "read_alone": {name: times[f"{name}, read alone"].rate(gigabytes) for name, *_ in ADAPTERS},
        "fed_to_read_alone": {
            name: speed_ratio(times[name], times[f"{name}, read alone"])["wall"] for name, *_ in ADAPTERS
        },
    }


ADAPTERS: list[tuple[str, tuple[LayerId, ...], Callable[[HiddenStateDataset], Adapter | None]]] = [
    ("pad_batch", AFTER, lambda _: None),
    ("SpecForge", AFTER, partial(SpecForgeAdapter, max_length=LONGEST)),
    ("speculators", BEFORE, partial(SpeculatorsAdapter, max_length=RULES.max_tokens)),
    ("ModelOpt", AFTER, partial(ModelOptAdapter, train_length=LONGEST)),
]


def sampler_of(dataset: HiddenStateDataset) -> TokenBatchSampler:
    """Return the batches of the first epoch."""
    return TokenBatchSampler(dataset.hashes, dataset.lengths, RULES)


def read_alone(dataset: HiddenStateDataset) -> None:
    """Read the batches one after the other, on as many threads as there are workers, and nothing else."""
    for batch in sampler_of(dataset):
        dataset.store.read_hidden_states(names_of(dataset.hashes[batch]), dataset.layers, threads=WORKERS)


def feed(dataset: HiddenStateDataset, adapter: Adapter | None) -> None:
    """Take the batches of an adapter from worker processes, whose start is a part of it."""
    options: dict[str, Any] = {} if adapter is None else {"collate_fn": adapter.collate}
    for batch in HiddenStateLoader(dataset, sampler_of(dataset), num_workers=WORKERS, **options):
        batch["input_ids"].sum()


if __name__ == "__main__":
    main()
