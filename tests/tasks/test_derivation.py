"""Turns found in what a template renders, with toy templates that each do one odd thing."""

import pytest

from tasks.derivation import Derivation, common_prefix, is_empty
from tasks.rejections import RowRejectedError
from tasks.supervision import AddedTokens, Supervision

TOKENS = AddedTokens(added=("<eot>", "</think>"), special=("<eot>",))
CHAT = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"},
]


def render_plain(messages, *, add_generation_prompt):
    text = "".join(f"{message['role']}: {message['content']}\n" for message in messages)
    return text + "assistant:" if add_generation_prompt else text


def render_ended(messages, *, add_generation_prompt):
    text = "".join(f"<{message['role']}>{message['content']}<eot>\n" for message in messages)
    return text + "<assistant>" if add_generation_prompt else text


def texts(messages, render, render_tracked=None, **supervision):
    samples = Derivation(messages, render, Supervision(**supervision), TOKENS, render_tracked).samples()
    return [[sample.text[span.start : span.end] for span in sample.spans] for sample in samples]


def refusal(messages, render):
    with pytest.raises(RowRejectedError) as error:
        texts(messages, render)
    return error.value.reason


def test_without_an_end_of_turn_token_the_whole_turn_is_learnt():
    assert texts(CHAT, render_plain) == [[" b\n", " d\n"]]


def test_the_end_of_turn_token_is_learnt_unless_it_shall_not_be():
    assert texts(CHAT, render_ended) == [["b<eot>", "d<eot>"]]
    assert texts(CHAT, render_ended, end_of_turn=False) == [["b", "d"]]


def test_the_last_turn_alone():
    assert texts(CHAT, render_ended, turns="last") == [["d<eot>"]]
    assert texts(CHAT[:3], render_ended, turns="last") == [["b<eot>"]]


def test_other_roles_are_learnt_from_their_content_on():
    weights = {"user": 0.5, "assistant": 1.0}
    [sample] = Derivation(CHAT, render_ended, Supervision(role_weights=weights), TOKENS).samples()
    found = [(sample.text[span.start : span.end], span.weight) for span in sample.spans]
    assert found == [("a<eot>", 0.5), ("b<eot>", 1.0), ("c<eot>", 0.5), ("d<eot>", 1.0)]


def test_a_template_that_rewrites_earlier_turns_gives_a_sample_for_each():
    def render(messages, *, add_generation_prompt):
        shown = [m | {"content": "-"} if m["role"] == "assistant" and m is not messages[-1] else m for m in messages]
        return render_ended(shown, add_generation_prompt=add_generation_prompt)

    assert texts(CHAT, render) == [["d<eot>"], ["b<eot>"]]
    assert texts([*CHAT, {"role": "user", "content": "e"}], render) == [["d<eot>"], ["b<eot>"]]


def test_a_prompt_that_begins_what_the_turn_has_not_ends_where_they_part():
    def render(messages, *, add_generation_prompt):
        text = render_ended(messages, add_generation_prompt=False)
        return text + "<assistant><think>" if add_generation_prompt else text

    chat = [CHAT[0], {"role": "assistant", "content": "<b>, not <think>"}]
    assert texts(chat, render) == [["<b>, not <think><eot>"]]


def test_a_turn_that_does_not_begin_as_prompts_do_is_refused():
    def render(messages, *, add_generation_prompt):
        text = render_ended(messages, add_generation_prompt=False)
        return text + "<other>" if add_generation_prompt else text

    assert refusal(CHAT, render) == "unstable_template"


def test_a_template_that_ignores_contents_is_refused():
    def render(messages, *, add_generation_prompt):
        return "?" * len(messages) + ("<assistant>" if add_generation_prompt else "")

    assert refusal(CHAT, render) == "unstable_template"


def test_a_template_that_refuses_the_chat_says_so():
    def render(*_, **__):
        raise RowRejectedError("template_error", "no")

    assert refusal(CHAT, render) == "template_error"


def test_a_missing_date_is_not_taken_for_a_refusal_of_the_prompt():
    def render(messages, *, add_generation_prompt):
        if add_generation_prompt:
            raise RowRejectedError("needs_date")
        return render_ended(messages, add_generation_prompt=False)

    assert refusal(CHAT, render) == "needs_date"


def test_a_turn_of_which_the_template_shows_nothing_is_not_learnt():
    chat = [*CHAT[:1], {"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}, *CHAT[2:]]
    assert texts(chat, render_ended) == [["d<eot>"]]


def test_a_split_gives_no_sample_of_which_nothing_is_learnt():
    def render(messages, *, add_generation_prompt):
        shown = [m | {"content": "-"} if m["role"] == "assistant" and m is not messages[-1] else m for m in messages]
        return render_ended(shown, add_generation_prompt=add_generation_prompt)

    called = {"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}
    assert texts([CHAT[0], called, *CHAT[2:]], render) == [["d<eot>"]]
    assert texts([CHAT[0], called], render) == [[]]


def test_nothing_to_learn_is_one_sample_without_spans():
    assert texts(CHAT[:1], render_ended) == [[]]


def test_tags_decide_where_they_are():
    def render_tracked(messages):
        text, spans = "", []
        for message in messages:
            text += f"<{message['role']}>"
            if message["role"] == "assistant":
                spans.append((len(text), len(text) + len(message["content"])))
            text += f"{message['content']}<eot>\n"
        return text, spans

    assert texts(CHAT, render_ended, render_tracked) == [["b", "d"]]
    assert texts(CHAT, render_ended, render_tracked, turns="last") == [["d"]]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": ""}, True),
        ({"content": " \n"}, True),
        ({"content": "", "tool_calls": []}, True),
        ({"content": "", "tool_calls": [{}]}, False),
        ({"content": "", "reasoning_content": "hm"}, False),
        ({"content": [{"type": "text", "text": " "}]}, True),
        ({"content": [{"type": "text", "text": "a"}]}, False),
        ({"content": "a"}, False),
    ],
)
def test_a_turn_is_empty_if_nothing_was_written(message, expected):
    assert is_empty(message) is expected


@pytest.mark.parametrize(
    ("a", "b", "length"), [("", "", 0), ("ab", "ab", 2), ("ab", "abc", 2), ("abX", "abY", 2), ("x", "y", 0)]
)
def test_common_prefix(a, b, length):
    assert common_prefix(a, b) == common_prefix(b, a) == length
