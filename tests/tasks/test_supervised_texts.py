"""On templates of ten families: what is learnt is what a person would mark, as text, by way of ids and masks."""

import pytest
from chat_fixtures import FIXTURES, answer, user
from chat_templates import FAMILIES, make_source
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from supervised_texts import SUPERVISED
from supervision import supervised, tokenize_row

from tasks.rejections import RowRejectedError


def test_every_fixture_is_marked_for_every_family():
    assert list(SUPERVISED) == list(FIXTURES)
    assert all(list(marked) == list(FAMILIES) for marked in SUPERVISED.values())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("fixture", FIXTURES)
def test_what_is_learnt_is_what_a_person_would_mark(smollm2, fixture, family):
    assert supervised(family, smollm2, FIXTURES[fixture]) == SUPERVISED[fixture][family]


# How each family ends a turn in the middle of a chat and at its end, and what the model writes before the answer.
ENDS = {
    "smollm2": "<|im_end|>",
    "qwen2.5": "<|im_end|>",
    "llama3": "<|eot_id|>",
    "deepseek_v3": "<｜end▁of▁sentence｜>",  # noqa: RUF001 - DeepSeek's token
    "kimi_k2": "<|im_end|>",
    "gemma": "<end_of_turn>",
    "mistral": "</s>",
}


@pytest.mark.parametrize("family", ENDS)
def test_all_turns_of_a_chat_of_300_are_learnt_in_one_sample(smollm2, family):
    messages = [turn for i in range(150) for turn in (user(f"Question {i}?"), answer(f"Answer {i}."))]
    [runs] = supervised(family, smollm2, {"messages": messages})
    assert runs == [f"Answer {i}.{ENDS[family]}" for i in range(150)]


@pytest.mark.parametrize("family", ENDS)
def test_a_prompt_longer_than_the_limit_leaves_nothing_to_learn(smollm2, family):
    row = {"messages": [user("word " * 500), answer("a"), user("B?"), answer("b")]}
    limited = {"max_length": 200}
    assert supervised(family, smollm2, row, **limited) == ["too_long"]
    assert supervised(family, smollm2, row, **limited, too_long="truncate") == ["nothing_to_supervise"]
    assert supervised(family, smollm2, row, **limited, too_long="truncate_turns") == ["too_long"]


@pytest.mark.parametrize(("family", "begin", "end"), [("qwen3", "<think>\n\n</think>\n\n", "<|im_end|>")])
def test_a_template_that_rewrites_history_gives_a_sample_a_turn(smollm2, family, begin, end):
    messages = [turn for i in range(12) for turn in (user(f"Question {i}?"), answer(f"Answer {i}."))]
    samples = supervised(family, smollm2, {"messages": messages})
    assert samples == [[f"{begin}Answer {i}.{end}"] for i in range(12)]


def test_a_prompt_that_begins_the_thinking_leaves_it_out(smollm2):
    row = {"messages": [user("A?"), answer("a"), user("B?"), answer("b", reasoning_content="hm")]}
    no_thinking = {"template_kwargs": {"enable_thinking": False}}
    assert supervised("qwen3", smollm2, {"messages": row["messages"][:2]}, **no_thinking) == [["a<|im_end|>"]]
    # What it is prompted not to think, it cannot have thought.
    assert supervised("qwen3", smollm2, row, **no_thinking) == ["unstable_template"]


def test_the_date_is_asked_for_where_the_template_shows_it(smollm2):
    assert supervised("gpt_oss", smollm2, FIXTURES["single turn"], template_date=None) == ["needs_date"]
    assert supervised("llama3", smollm2, FIXTURES["single turn"], template_date=None) == ["needs_date"]
    told = {"template_date": None, "template_kwargs": {"date_string": "26 Jul 2024"}}
    assert supervised("llama3", smollm2, FIXTURES["single turn"], **told) == [["Hello, you.<|eot_id|>"]]


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cn", "Co"]), min_size=1, max_size=40)
TEXTS = TEXTS.map(str.strip).filter(bool)


def has_tokens(smollm2, text):
    """SmolLM2's vocabulary lacks some bytes."""
    backend = make_source("smollm2", smollm2).backend
    return backend.decode(backend.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("family", ENDS)
@settings(max_examples=30, deadline=None)
@given(chat=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_what_is_learnt_of_any_chat_is_what_the_assistant_wrote(smollm2, family, chat):
    assume(all(has_tokens(smollm2, reply) for _, reply in chat))
    messages = [turn for question, reply in chat for turn in (user(question), answer(reply))]
    [runs] = supervised(family, smollm2, {"messages": messages})
    assert "".join(runs) == "".join(reply + ENDS[family] for _, reply in chat)


@settings(max_examples=30, deadline=None)
@given(row=st.sampled_from(list(FIXTURES.values())), family=st.sampled_from(list(FAMILIES)), length=st.integers(1, 60))
def test_ids_and_weights_are_of_one_length_however_they_are_cut(smollm2, row, family, length):
    for too_long in ("reject", "truncate", "truncate_turns"):
        for sample in tokenize_row(family, smollm2, row, max_length=length, too_long=too_long).samples:
            if not isinstance(sample, RowRejectedError):
                assert sample.input_ids.shape == sample.loss_weight.shape == sample.loss_mask.shape
                assert 0 < len(sample.input_ids) <= length
                assert sample.loss_mask.any()
