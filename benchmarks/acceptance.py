"""What a drafter is worth that was trained from a store, and what it costs to take the wrong states for it.

    nice -n 10 python benchmarks/acceptance.py FOLDER

SmolLM2-135M-Instruct answers prompts that it invents (examples/answer_prompts.py), `aerie extract` makes a store of
these chats and four in five of the bundled ones, examples/train_eagle3.py trains drafters from it, and these draft for
the target, greedily, the first answers of the other bundled chats. FOLDER keeps what is made: a second run makes the
rest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from record import ROOT, write_result

sys.path.insert(0, str(ROOT / "examples"))

from eagle3 import Draft, Drafter
from measure_acceptance import measure, read_prompts, summarize
from torch import Tensor
from train_eagle3 import load_target, make_drafter, make_parser, open_dataset, train

from storage import open_store
from storage.dataset import HiddenStateDataset, Item
from tasks.smollm2 import ensure_smollm2

BUNDLED = ROOT / "flows" / "data" / "mt_bench_smollm2.jsonl"
# Every fifth of the bundled chats is held out.
HELD_OUT = 5
RIGHT, HIGH, LOW = (2, 15, 27), (3, 16, 28), (1, 14, 26)
CAPTURED = (*sorted({*RIGHT, *HIGH, *LOW}), "final")
NUM_INVENTED, NUM_NEW, NUM_DRAFTS = 128, 64, 4


@dataclass(frozen=True)
class Case:
    """A drafter and what it is fed."""

    name: str
    trained_on: tuple[int, ...] | None
    fed: tuple[int, ...]
    is_late: bool = False
    draft: type[Draft] = Draft


class DraftOfTokenBefore(Draft):
    """A draft that is fed, in place of each token's states, those of the token before it."""

    _last: Tensor | None = None

    def propose(self, states: Tensor, tokens: Tensor, count: int) -> list[int]:
        """Return the guesses."""
        before = states[:1] if self._last is None else self._last
        self._last = states[-1:]
        return super().propose(torch.cat([before, states[:-1]]), tokens, count)


CASES = (
    Case("not trained", None, RIGHT),
    Case("trained and fed as it should be", RIGHT, RIGHT),
    Case("fed one layer up", RIGHT, HIGH),
    Case("fed one layer down", RIGHT, LOW),
    Case("fed the states of the token before", RIGHT, RIGHT, draft=DraftOfTokenBefore),
    Case("trained one layer up", HIGH, RIGHT),
    Case("trained on states one token late", RIGHT, RIGHT, is_late=True),
)


def main() -> None:
    """Make what is not there yet, and write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[case.name for case in CASES], help="cases, by their names")
    parser.add_argument("--answered", type=Path, help="chats that the target has answered already")
    options = parser.parse_args()
    model = ensure_smollm2()
    held_out = prepare(options.folder, model, options.answered)
    target, prompts = load_target(model), read_prompts(held_out, model)
    bench = Bench(options.folder, model, target, prompts, options.epochs)
    for seed in options.seeds:
        for case in CASES:
            if case.name in options.only:
                bench.measure(case, seed)
            print(write_result("acceptance", bench.figures()))


def prepare(folder: Path, model: Path, answered: Path | None) -> Path:
    """Make the chats and the store that are not there; return the chats that are held out."""
    folder.mkdir(parents=True, exist_ok=True)
    answered = answered or folder / "answered.jsonl"
    if not answered.exists():
        run("examples/answer_prompts.py", answered, "--model", model, "--invent", NUM_INVENTED, "--max-new-tokens", 160)
    lines = BUNDLED.read_text("utf-8").splitlines(keepends=True)
    held_out, training = folder / "held-out.jsonl", folder / "training.jsonl"
    held_out.write_text("".join(lines[::HELD_OUT]), "utf-8")
    training.write_text("".join(line for i, line in enumerate(lines) if i % HELD_OUT), "utf-8")
    store = folder / "store"
    if not store.exists():
        layers = ",".join(map(str, CAPTURED))
        data = ["--data", training, answered]
        run("-m", "flows.cli", "extract", "--model", model, "--store", store, "--layers", layers, *data)
    return held_out


def run(*command: object) -> None:
    """Run Python with these arguments, from the root of the tree."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, env=environment, check=True)  # noqa: S603 - ours


class LateStates(HiddenStateDataset):
    """Rows whose states for the drafter are those of the token after, as where a trainer forgets to shift."""

    def __getitems__(self, batch: Any) -> list[Item]:
        """Return several items."""
        items = super().__getitems__(batch)
        for item in items:
            item["hidden_states"][:-1, :-1] = item["hidden_states"][1:, :-1].clone()
        return items


class Bench:
    """Drafters of one folder, and what they were measured to be worth."""

    def __init__(self, folder: Path, model: Path, target: Any, prompts: list[list[int]], epochs: int) -> None:
        self._folder, self._model, self._target, self._prompts = folder, model, target, prompts
        self._epochs = epochs
        self._rows = folder / "rows.jsonl"
        self._rows.touch()

    def measure(self, case: Case, seed: int) -> None:
        """Measure a case if it is not there."""
        if any(row["case"] == case.name and row["seed"] == seed for row in self.rows()):
            return
        drafter, seconds = self._drafter(case, seed)
        accepted = measure(self._target, drafter, self._prompts, case.fed, NUM_NEW, NUM_DRAFTS, case.draft)
        row = {"case": case.name, "seed": seed, "training_seconds": seconds, **summarize(accepted, NUM_DRAFTS)}
        print(json.dumps(row), flush=True)
        with self._rows.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """Return what has been measured."""
        return [json.loads(line) for line in self._rows.read_text().splitlines()]

    def figures(self) -> dict[str, Any]:
        """Return all figures, and for each case the mean over seeds and the extremes."""
        rows = self.rows()
        store = open_store(self._folder / "store")
        return {
            "training": {"samples": len(store), "tokens": store.num_tokens(), "epochs": self._epochs},
            "held_out_prompts": len(self._prompts),
            "num_new": NUM_NEW,
            "num_drafts": NUM_DRAFTS,
            "cases": {name: _spread(rows, name) for name in dict.fromkeys(row["case"] for row in rows)},
            "rows": rows,
        }

    def _drafter(self, case: Case, seed: int) -> tuple[Drafter, float | None]:
        """Return the drafter of a case, trained unless it is there, and how long that took just now."""
        trained_on = case.trained_on or RIGHT
        layers = ",".join(map(str, trained_on))
        flags = ["--model", self._model, "--out", "", "--layers", layers, "--epochs", self._epochs, "--seed", seed]
        options = make_parser().parse_args([str(self._folder / "store"), *map(str, flags)])
        dataset = open_dataset(options.store, options.layers, self._target.config.num_hidden_layers)
        if case.trained_on is None:
            return make_drafter(dataset, self._target, options), None
        file = self._folder / f"{'late-' * case.is_late}{'-'.join(map(str, trained_on))}-seed-{seed}.pt"
        if file.exists():
            return Drafter.load(file, self._target), None
        if case.is_late:
            dataset = LateStates(options.store, dataset.tokens.digest, layers=dataset.layers, missing="skip")
        drafter, began = make_drafter(dataset, self._target, options), time.monotonic()
        train(drafter, dataset, options)
        drafter.save(file)
        return drafter, time.monotonic() - began


def _spread(rows: list[dict[str, Any]], case: str) -> dict[str, Any]:
    lengths = [row["acceptance_length"] for row in rows if row["case"] == case]
    return {"mean": statistics.mean(lengths), "min": min(lengths), "max": max(lengths), "seeds": len(lengths)}


if __name__ == "__main__":
    main()
