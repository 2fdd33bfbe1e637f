"""Adapters give what each trainer's own code makes of files with the same content (tests/consumer_readers)."""

import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from consumers import READERS, ensure_consumer

from storage import TokensSpec
from storage.adapters import AdaptedDataset, Adapter, ModelOptAdapter, SpecForgeAdapter, SpeculatorsAdapter
from storage.dataset import HiddenStateDataset, HiddenStateLoader
from storage.epochs import BatchRules
from storage.errors import SpecError
from storage.samplers import TokenBatchSampler
from storage.tokens import TokensWriter
from tasks.smollm2 import user_cache

LENGTHS = (40, 300, 7, 1, 90)
CAPTURED = (1, 2, 5, 8, "final")  # of 8 blocks
AFTER, BEFORE = (1, 2, 5, "final"), (1, 2, 5, 8)


# What each trainer makes of the rows in one process: its imports take longer than all else.
JOBS: dict[str, list[tuple[tuple[Any, ...], int, dict[str, Any]]]] = {
    "specforge": [(AFTER, 64, {}), (AFTER, 512, {})],
    "speculators": [
        *((BEFORE, length, {"shift": True, "dtype": torch.bfloat16}) for length in (20, 340, 433, 1000)),  # 433: full
        *((BEFORE, length, {"shift": False, "dtype": torch.bfloat16}) for length in (300, 438, 1000)),  # 438: full
        (BEFORE, 400, {"shift": True, "dtype": torch.float32}),
    ],
    "modelopt": [
        (layers, 64, {"answer_only_loss": answer_only, "prenorm": layers == BEFORE})
        for layers in (AFTER, BEFORE)
        for answer_only in (True, False)
    ],
}
ADAPTERS = {"specforge": SpecForgeAdapter, "speculators": SpeculatorsAdapter, "modelopt": ModelOptAdapter}


@pytest.fixture
def open_dataset(make_filled) -> Callable[..., HiddenStateDataset]:
    filled = make_filled(LENGTHS, layers=CAPTURED)
    spec = TokensSpec(("data",), "tokenizer", "template")
    with TokensWriter(filled.path, spec) as writer:
        for number, (input_ids, _) in enumerate(filled.samples.values()):
            writer.append(input_ids, (np.arange(len(input_ids)) % 3 > 0).astype(np.uint8), number)
        writer.commit()
    return lambda layers: HiddenStateDataset(filled.path, spec.digest(), layers=layers)


def rows_of(dataset: HiddenStateDataset) -> list[dict[str, torch.Tensor]]:
    """Return the rows as exporters would write them."""
    return [
        {
            "input_ids": item["input_ids"],
            "loss_mask": item["loss_mask"],
            "aux": item["hidden_states"][:, :-1].contiguous(),
            "last": item["hidden_states"][:, -1].contiguous(),
        }
        for item in (dataset[i] for i in range(len(dataset)))
    ]


def run_trainer(trainer: str, jobs: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    torch.save(jobs, folder / "in.pt")
    python = ensure_consumer(trainer, user_cache() / "tests") / "bin" / "python"
    command = [python, READERS / "make_samples.py", trainer, folder / "in.pt", folder / "out.pt"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return torch.load(folder / "out.pt", weights_only=True)


def assert_same(ours: Any, wanted: Any) -> None:
    assert type(ours) is type(wanted)
    if isinstance(ours, dict):
        assert ours.keys() == wanted.keys()
        for name in ours:
            assert_same(ours[name], wanted[name])
    elif isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(ours, wanted)
    else:
        assert ours == wanted


@pytest.mark.parametrize("trainer", JOBS)
def test_samples_and_batches_are_the_trainers_own(open_dataset, tmp_path, trainer):
    datasets = {layers: open_dataset(layers) for layers in {job[0] for job in JOBS[trainer]}}
    jobs = [
        {"rows": rows_of(datasets[layers]), "length": length, "options": options}
        for layers, length, options in JOBS[trainer]
    ]
    made = run_trainer(trainer, jobs, tmp_path)
    for (layers, length, options), wanted in zip(JOBS[trainer], made, strict=True):
        dataset = datasets[layers]
        own = {name: value for name, value in options.items() if name != "prenorm"}  # an adapter sees it by itself
        adapter: Adapter = ADAPTERS[trainer](dataset, length, **own)
        adapted = AdaptedDataset(dataset, adapter)
        assert len(wanted["samples"]) == len(LENGTHS)
        for i, sample in enumerate(wanted["samples"]):
            assert_same(adapted[i], sample)
        copy = pickle.loads(pickle.dumps(adapter))  # noqa: S301 - our own
        assert_same(copy.collate([dataset[i] for i in range(len(dataset))]), wanted["batch"])


def test_batches_come_from_workers_in_the_order_of_the_sampler(open_dataset):
    dataset = open_dataset(AFTER)
    adapter = SpecForgeAdapter(dataset, 64)
    sampler = TokenBatchSampler(dataset.hashes, dataset.lengths, BatchRules(max_tokens=128, max_padding=0.9))
    expected = [adapter.collate(dataset.__getitems__(batch)) for batch in sampler]
    found = list(HiddenStateLoader(dataset, sampler, num_workers=2, collate_fn=adapter.collate))
    assert len(found) == len(expected) > 1
    for ours, wanted in zip(found, expected, strict=True):
        assert_same(ours, wanted)


def test_a_dataset_of_samples_has_what_speculators_sampler_asks_for(open_dataset):
    dataset = open_dataset(BEFORE)
    adapted = AdaptedDataset(dataset, SpeculatorsAdapter(dataset, 64))
    assert adapted.approx_lengths == list(LENGTHS)
    assert len(adapted) == len(LENGTHS)
    for one, several in zip((adapted[i] for i in (3, 0)), adapted.__getitems__([3, 0]), strict=True):
        assert_same(one, several)


@pytest.mark.parametrize(
    ("make", "layers", "cure"),
    [
        (SpecForgeAdapter, (1, 5, "final"), r"layers=\[2, 4, 5, 'final'\]"),
        (SpecForgeAdapter, BEFORE, "after the final norm"),
        (SpeculatorsAdapter, AFTER, r"layers=\[..., 8\]; if the store lacks it, extract with --layers eagle3,L"),
        (SpeculatorsAdapter, (1, "final", 8), "before it last"),
        (SpeculatorsAdapter, (8,), "before it last"),
        (ModelOptAdapter, (1, 2, 5), "or 8 for the stream before the norm"),
        (ModelOptAdapter, ("final",), "what the LM head reads"),
    ],
)
def test_layers_that_a_trainer_does_not_take_are_refused_with_those_that_it_takes(open_dataset, make, layers, cure):
    with pytest.raises(SpecError, match=cure):
        make(open_dataset(layers), 64)
