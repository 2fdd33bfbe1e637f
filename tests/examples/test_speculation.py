"""Speculative decoding gives the target's own text, whoever drafts; and counts what was drafted right."""

import pytest
import torch
from eagle3 import Draft, Drafter
from speculation import acceptance_length, decode
from train_eagle3 import load_target

LAYERS = (2, 15, 27)
NUM_DRAFTS = 4
NUM_NEW = 1 + 8 * (NUM_DRAFTS + 1)  # the first token, and what eight forwards can make
QUESTION = "Tell me a long story about an eagle and its nest."


@pytest.fixture(scope="module")
def target(smollm2):
    return load_target(smollm2)


@pytest.fixture(scope="module")
def prompt(smollm2) -> list[int]:
    from transformers import AutoTokenizer

    messages = [{"role": "user", "content": QUESTION}]
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


@pytest.fixture(scope="module")
def answer(target, prompt) -> list[int]:
    """The target's greedy answer by transformers' own decoding, and what an oracle has to know behind it."""
    found = target.generate(torch.tensor([prompt]), max_new_tokens=NUM_NEW + NUM_DRAFTS, do_sample=False)
    new = found[0, len(prompt) :].tolist()
    assert len(new) == NUM_NEW + NUM_DRAFTS
    return new


class Oracle:
    """Knows the answer, and says so many tokens of it before it is wrong."""

    def __init__(self, prompt: list[int], answer: list[int], num_right: int) -> None:
        self.text, self.begins, self.num_right = prompt + answer, len(prompt), num_right
        self.told: list[int] = prompt[:1]
        self.states: list[torch.Tensor] = []

    def propose(self, states: torch.Tensor, tokens: torch.Tensor, count: int) -> list[int]:
        assert len(states) == len(tokens)
        self.states.append(states)
        self.told += tokens.tolist()
        guesses = self.text[len(self.told) :][:count]
        return [token if i < self.num_right else (token + 1) % 49152 for i, token in enumerate(guesses)]


@pytest.mark.parametrize("num_right", [0, 1, NUM_DRAFTS])
def test_an_oracle_is_believed_and_what_is_wrong_is_not(target, prompt, answer, num_right):
    oracle = Oracle(prompt, answer, num_right)

    decoded = decode(target, oracle, prompt, LAYERS, num_new=NUM_NEW, num_drafts=NUM_DRAFTS)

    assert decoded.tokens[:NUM_NEW] == answer[:NUM_NEW]
    assert set(decoded.accepted) == {num_right}
    assert decoded.acceptance_length == num_right + 1
    assert oracle.told == oracle.text[: len(oracle.told)]


def test_a_proposer_is_given_the_states_that_the_target_has_for_the_text(target, prompt, answer):
    oracle = Oracle(prompt, answer, 2)
    decode(target, oracle, prompt, LAYERS, num_new=NUM_NEW, num_drafts=NUM_DRAFTS)
    found = torch.cat(oracle.states)

    whole = target(torch.tensor([oracle.told]), output_hidden_states=True).hidden_states

    for slot, layer in enumerate(LAYERS):
        wanted = whole[layer][0, : len(found)]
        assert (found[:, slot] - wanted).norm() < 1e-3 * wanted.norm()


def test_a_drafter_that_knows_nothing_leaves_the_text_as_it_is(target, prompt, answer):
    torch.manual_seed(0)
    drafter = Drafter(target, torch.arange(0, 49152, 7), LAYERS)

    decoded = decode(target, Draft(drafter), prompt, LAYERS, num_new=NUM_NEW, num_drafts=NUM_DRAFTS)

    assert decoded.tokens[:NUM_NEW] == answer[:NUM_NEW]
    assert decoded.acceptance_length < 1.5


def test_the_end_of_the_text_is_the_end(target, prompt, answer):
    ends = target.generation_config.eos_token_id
    target.generation_config.eos_token_id = answer[7]  # the eighth token, or an earlier one that is the same
    try:
        until = answer.index(answer[7]) + 1
        oracle = Oracle(prompt, answer, NUM_DRAFTS)
        decoded = decode(target, oracle, prompt, LAYERS, num_new=NUM_NEW, num_drafts=NUM_DRAFTS)
    finally:
        target.generation_config.eos_token_id = ends
    assert decoded.tokens == answer[:until]


def test_the_acceptance_length_is_tokens_by_forward():
    assert acceptance_length([0, 4, 2]) == 3
    assert acceptance_length([]) == 1


def test_training_sees_what_drafting_sees(target, prompt, answer):
    """At step j of training, position p gives what the j-th guess after it is made of when p tokens are known."""
    torch.manual_seed(0)
    drafter = Drafter(target, torch.arange(49152), LAYERS)
    text = torch.tensor(prompt + answer)[:24]
    hidden = target(text[None], output_hidden_states=True).hidden_states
    states = torch.stack([hidden[layer][0] for layer in LAYERS], dim=1)
    steps = 4
    unrolled = torch.stack(list(drafter.unroll(states[None, :-1], text[None, 1:], steps)))[:, 0]
    for known in (1, 2, 9, 19):
        said = []

        def look(hidden, said=said, known=known):
            said.append(drafter.norm(hidden[0, -1]))
            return int(text[known + len(said)])

        draft = Draft(drafter)
        draft._say = look
        draft.propose(states[:known], text[1 : known + 1], steps)
        for step in range(steps):
            assert torch.allclose(unrolled[step, known - 1 + step], said[step], atol=1e-3)
