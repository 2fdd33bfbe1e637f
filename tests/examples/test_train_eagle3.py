"""A drafter learns from a store, is kept, and drafts better than before."""

import argparse
import json
import sys
from pathlib import Path

import answer_prompts
import numpy as np
import pytest
import torch
from eagle3 import Drafter
from measure_acceptance import measure, read_prompts, summarize
from train_eagle3 import load_target, make_drafter, make_parser, open_dataset, train

from storage import StateSpec, TokensSpec, init_store
from storage.objects import ObjectWriter
from storage.store import add_spec
from storage.tokens import TokensWriter
from tasks.engine.base import EngineOptions
from tasks.engine.reference_engine import ReferenceEngine
from tasks.tokens_specs import tokenizer_spec

LAYERS = (2, 15, 27, "final")
QUESTIONS = ("Name the planets.", "What is an aerie?", "Write a poem about rain.")
NUM_NEW = 48


@pytest.fixture(scope="module")
def target(smollm2):
    return load_target(smollm2)


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    turns = [[{"role": "user", "content": question}, {"role": "assistant", "content": ""}] for question in QUESTIONS]
    file.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    return file


@pytest.fixture(scope="module")
def options(smollm2, target, chats, tmp_path_factory) -> argparse.Namespace:
    """A store of the target's greedy answers, and the options of a short training on it."""
    store = tmp_path_factory.mktemp("trained") / "store"
    init_store(store)
    engine = ReferenceEngine(EngineOptions(smollm2, LAYERS, "float32", "bfloat16", "cpu", 512))
    spec = StateSpec("f" * 64, "LlamaForCausalLM", 30, 576, LAYERS, "float32", "bfloat16", None, "transformers", "5")
    add_spec(store, spec)
    writer = ObjectWriter(store, spec)
    tokenizer, template = tokenizer_spec(smollm2)
    with TokensWriter(store, TokensSpec(("data",), tokenizer, str(template))) as tokens:
        for number, prompt in enumerate(read_prompts(chats, smollm2)):
            text = target.generate(torch.tensor([prompt]), max_new_tokens=NUM_NEW, do_sample=False)[0].numpy()
            ids = text.astype(np.int32)
            writer.write(ids, engine.forward([ids]).view(torch.uint16).numpy())
            tokens.append(ids, (np.arange(len(ids)) >= len(prompt)).astype(np.uint8), number)
        tokens.commit()
    flags = ["--model", smollm2, "--out", store.parent / "drafter.pt", "--draft-vocabulary", 512, "--epochs", 12]
    return make_parser().parse_args([str(store), *map(str, flags), "--batch-tokens", "256"])


@pytest.fixture(scope="module")
def dataset(options):
    return open_dataset(options.store, options.layers, 30)


def test_the_dataset_has_three_layers_and_final(dataset):
    assert dataset.layers == LAYERS
    assert len(dataset) == len(QUESTIONS)


def test_a_store_without_the_tokens_asked_for_is_refused(options):
    with pytest.raises(SystemExit, match="has 0 tokens artifacts 0000; give --tokens"):
        open_dataset(options.store, options.layers, 30, "0000")


def test_the_drafter_can_say_what_is_learnt_most_and_its_target_stays_as_it_is(dataset, target, options, capsys):
    before = [parameter.clone() for parameter in target.parameters()]
    drafter = make_drafter(dataset, target, options)
    assert "can say 100.0%" in capsys.readouterr().out
    learnt = torch.cat([item["input_ids"][item["loss_mask"] == 1] for item in (dataset[i] for i in range(3))])
    assert torch.isin(learnt, drafter.target_ids).all()
    train(drafter, dataset, argparse.Namespace(**vars(options) | {"epochs": 1}))
    assert all(torch.equal(old, new) for old, new in zip(before, target.parameters(), strict=True))
    assert not {"embedding", "head"} & {name for name, _ in drafter.named_parameters()}


def test_what_is_trained_drafts_better_and_is_read_back_the_same(dataset, target, options, chats):
    prompts = read_prompts(chats, options.model)
    untrained = make_drafter(dataset, target, options)
    before = measure(target, untrained, prompts, untrained.layers, NUM_NEW, 3)
    drafter = make_drafter(dataset, target, options)
    train(drafter, dataset, options)
    drafter.save(options.out)

    kept = Drafter.load(options.out, target)
    after = measure(target, kept, prompts, kept.layers, NUM_NEW, 3)

    assert summarize(after, 3)["acceptance_length"] > summarize(before, 3)["acceptance_length"] + 0.5
    for name, weights in drafter.state_dict().items():
        assert torch.equal(kept.state_dict()[name], weights)
    assert kept.layers == (2, 15, 27)


def test_what_is_measured_adds_up():
    found = summarize([0, 2, 3, 1], 3)
    assert found == {"acceptance_length": 2.5, "right": [0.75, round(2 / 3, 3), 0.5], "forwards": 4}
    assert summarize([0], 2)["right"] == [0.0, None]


@pytest.fixture
def answer(smollm2, chats, tmp_path, monkeypatch):
    """Return the function that runs the script with a seed and more, and returns what it wrote."""
    monkeypatch.chdir(chats.parent)

    def run(seed: int, *source: str) -> str:
        options = [tmp_path / "out.jsonl", "--model", smollm2, "--max-new-tokens", 8, "--seed", seed, *source]
        monkeypatch.setattr(sys, "argv", ["answer_prompts.py", *map(str, options)])
        answer_prompts.main()
        return (tmp_path / "out.jsonl").read_text()

    return run


def turns_of(written: str) -> list[list[tuple[str, str]]]:
    rows = [json.loads(line)["messages"] for line in written.splitlines()]
    return [[(message["role"], message["content"]) for message in row] for row in rows]


def test_prompts_are_answered_the_same_way_from_the_same_seed(answer):
    first, again, other = (answer(seed, "--prompts", "chats.jsonl") for seed in (3, 3, 4))
    assert first == again != other
    assert [row[0] for row in turns_of(first)] == [("user", question) for question in QUESTIONS]
    assert all(row[1][0] == "assistant" and row[1][1] for row in turns_of(first))


def test_prompts_are_invented(answer):
    rows = turns_of(answer(3, "--invent", "3"))
    assert rows
    assert all([role for role, _ in row] == ["user", "assistant"] for row in rows)
    assert all(content for row in rows for _, content in row)
