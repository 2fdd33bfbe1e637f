"""Train an EAGLE-3 drafter from a store of hidden states: on a CPU in minutes, for a model as small as SmolLM2.

    python examples/train_eagle3.py STORE --model MODEL --out drafter.pt

The store has three layers and `final`, as `aerie extract` captures by default. What the drafter is worth, says
examples/measure_acceptance.py.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from eagle3 import Drafter
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from storage.dataset import HiddenStateDataset, HiddenStateLoader, Item
from storage.epochs import BatchRules
from storage.file_checks import tokens_digests
from storage.paths import store_path
from storage.samplers import TokenBatchSampler
from tasks.draft_vocabularies import ensure_draft_vocabulary, make_spec
from tasks.engine.layers import resolve_layers
from tasks.tokens_specs import tokenizer_spec

# Of each step of a draft in the loss, by the step before: it counts only where that one was right.
STEP_WEIGHT = 0.8
WARM_UP = 0.1  # of all steps of the optimizer


def main() -> None:
    """Train, and write the drafter."""
    options = make_parser().parse_args()
    target = load_target(options.model)
    dataset = open_dataset(options.store, options.layers, target.config.num_hidden_layers, options.tokens)
    drafter = make_drafter(dataset, target, options)
    train(drafter, dataset, options)
    drafter.save(options.out)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--model", type=Path, required=True, help="folder of the target")
    parser.add_argument("--out", type=Path, required=True, help="file for the drafter")
    parser.add_argument("--tokens", default="", help="the tokens artifact, by its digest, if the store has several")
    parser.add_argument("--layers", default="2,L//2,L-3", help="three layers that the store has; L is the last")
    parser.add_argument("--draft-vocabulary", type=int, default=4096, help="tokens that the drafter can say")
    parser.add_argument("--steps", type=int, default=3, help="of a draft, unrolled in training")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--float32", action="store_true", help="for processors that are slow in bfloat16")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def load_target(model: Path) -> Any:
    """Load the target in float32, frozen."""
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval().requires_grad_(False)


def open_dataset(store: str, layers: str, num_layers: int, tokens: str = "") -> HiddenStateDataset:
    """Open the rows of a store whose states it has: those of `layers`, and what the LM head reads."""
    found = [digest for digest in tokens_digests(store_path(store)) if digest.startswith(tokens)]
    if len(found) != 1:
        raise SystemExit(f"{store} has {len(found)} tokens artifacts {tokens}; give --tokens, as in a run's report")
    return HiddenStateDataset(store, found[0], layers=resolve_layers(f"{layers},final", num_layers), missing="skip")


def make_drafter(dataset: HiddenStateDataset, target: Any, options: argparse.Namespace) -> Drafter:
    """Make a drafter that can say the tokens which are learnt most often; Aerie keeps the list in the store."""
    tokenizer, _ = tokenizer_spec(options.model)
    size = len(target.get_input_embeddings().weight)
    spec = make_spec(dataset.tokens, tokenizer, target_size=size, draft_size=options.draft_vocabulary)
    vocabulary = ensure_draft_vocabulary(dataset.store.path, dataset.tokens, spec)
    print(f"the drafter can say {vocabulary.coverage:.1%} of what is learnt")
    torch.manual_seed(options.seed)
    layers = tuple(int(layer) for layer in dataset.layers[:-1])
    drafter = Drafter(target, torch.from_numpy(vocabulary.target_ids), layers)
    drafter.begin_like(target)
    return drafter


def train(drafter: Drafter, dataset: HiddenStateDataset, options: argparse.Namespace) -> None:
    """Train with AdamW, its rate rising at first and then falling to nothing."""
    rules = BatchRules(options.batch_tokens, seed=options.seed)
    sampler = TokenBatchSampler(dataset.hashes, dataset.lengths, rules)
    loader = HiddenStateLoader(dataset, sampler)
    optimizer = torch.optim.AdamW(drafter.parameters(), options.learning_rate, betas=(0.9, 0.95))
    total = options.epochs * len(loader) * 1.05  # epochs differ by a batch or two
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: rate_at(at / total))
    began = time.monotonic()
    while sampler.epoch < options.epochs:
        sums = torch.zeros(3)
        for batch in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=not options.float32):
                loss, right, learnt = loss_of(drafter, batch, options.steps)
            improve(drafter, optimizer, loss / max(1, learnt))
            sums += torch.tensor([loss.item(), right, learnt])
            schedule.step()
        loss, right, learnt = sums.tolist()
        took = time.monotonic() - began
        print(f"epoch {sampler.epoch}: loss {loss / learnt:.3f}, first guess right {right / learnt:.1%}, {took:.0f} s")


def rate_at(done: float) -> float:
    """Return the part of the learning rate at a part of the training: up in a line, down in a cosine."""
    return done / WARM_UP if done < WARM_UP else 0.5 + 0.5 * math.cos(math.pi * min(1.0, done))


def improve(drafter: Drafter, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Make one step of the optimizer."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
    optimizer.step()


def loss_of(drafter: Drafter, batch: Item, steps: int) -> tuple[Tensor, int, int]:
    """Return the cross entropy with what the target would have said, summed; right first guesses; learnt positions.

    Position p has the states of token p and the embedding of token p + 1; it learns what the target said after that,
    where token p + 2 is one that the loss mask has and the drafter can say.
    """
    tokens, states = batch["input_ids"], batch["hidden_states"].float()
    learnt = (batch["loss_mask"][:, 2:] == 1) & torch.isin(tokens[:, 2:], drafter.target_ids)
    learnt[:, :steps] = False  # not defined there at every step
    with torch.no_grad():
        wanted = (states[:, 1:-1, -1][learnt] @ drafter.head.T).float().softmax(dim=-1)
    loss, right = torch.zeros(()), 0
    for step, hidden in enumerate(drafter.unroll(states[:, :-2, :-1], tokens[:, 1:-1], steps)):
        logits = (hidden[learnt] @ drafter.head.T).float()
        loss = loss + STEP_WEIGHT**step * F.cross_entropy(logits, wanted, reduction="sum")
        right += int((logits.argmax(dim=-1) == wanted.argmax(dim=-1)).sum()) if step == 0 else 0
    return loss, right, len(wanted)


if __name__ == "__main__":
    main()
