"""Rows of every shape, and why a row is not of the shape of its file."""

import json

import numpy as np
import pytest

from tasks.chats import Chat, PlainText, TokenRow
from tasks.inputs.openai_messages import normalize_tools
from tasks.inputs.shapes import ShapeRules, detect_shape, find_shape, read_row
from tasks.rejections import RowRejectedError

TURNS = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
SHAREGPT = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]


@pytest.mark.parametrize(
    ("row", "shape", "expected"),
    [
        ({"messages": TURNS}, "messages", Chat(TURNS)),
        ({"conversations": TURNS}, "messages", Chat(TURNS)),
        ({"messages": json.dumps(TURNS)}, "messages", Chat(TURNS)),
        ({"conversations": json.dumps(SHAREGPT)}, "sharegpt", Chat(TURNS)),
        ({"conversations": SHAREGPT}, "sharegpt", Chat(TURNS)),
        ({"conversations": SHAREGPT, "system": "s"}, "sharegpt", Chat([{"role": "system", "content": "s"}, *TURNS])),
        ({"prompt": "a", "response": "b"}, "prompt_response", Chat(TURNS)),
        ({"prompt": TURNS[:1], "completion": TURNS[1:]}, "prompt_response", Chat(TURNS)),
        ({"instruction": "a", "input": "", "output": "b"}, "prompt_response", Chat(TURNS)),
        (
            {"instruction": "a", "input": "x", "output": "b"},
            "prompt_response",
            Chat([{"role": "user", "content": "a\n\nx"}, TURNS[1]]),
        ),
        ({"question": "a", "answer": "b"}, "prompt_response", Chat(TURNS)),
        ({"text": "a"}, "text", PlainText("a")),
        # What is more to a row decides.
        ({"text": "x", "prompt": "x", "messages": TURNS, "input_ids": [1]}, "messages", Chat(TURNS)),
    ],
)
def test_a_row_has_the_shape_that_its_names_say(row, shape, expected):
    rules = ShapeRules()
    assert detect_shape(row, rules) == shape
    assert read_row(row, shape, rules) == expected


def test_the_shape_of_a_file_is_that_of_most_of_its_rows():
    rules, text, chat = ShapeRules(), {"text": "a"}, {"messages": TURNS}
    assert find_shape([text, chat, chat], rules) == find_shape([text, chat, None], rules) == "messages"
    assert find_shape([text, chat, text], rules) == "text"
    assert find_shape([7, {}], rules) == find_shape([], rules) == "messages"


def test_tokens_are_taken_as_they_are():
    rows = [{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1], "text": "x"}, {"input_ids": [1, 2, 3]}]
    made = [read_row(row, detect_shape(row, ShapeRules()), ShapeRules()) for row in rows]
    assert all(isinstance(row, TokenRow) for row in made)
    assert [row.loss_mask.tolist() for row in made] == [[0, 1, 1], [1, 1, 1]]
    assert made[0].input_ids.dtype == np.int32
    assert made[0].loss_mask.dtype == np.uint8


@pytest.mark.parametrize("row", [{}, [], 7, None, {"messages": []}, {"prompt": "a"}, {"other": "a"}])
def test_a_row_may_have_no_shape(row):
    assert detect_shape(row, ShapeRules()) is None


def test_columns_and_roles_may_be_named():
    rules = ShapeRules(columns={"conversations": "dialog"}, role_names={"client": "user", "us": "assistant"})
    row = {"dialog": [{"from": "client", "value": "a"}, {"from": "us", "value": "b"}], "messages": "no"}
    assert read_row(row, "sharegpt", rules) == Chat(TURNS)
    assert "dialog" in rules.known_columns()
    assert detect_shape({"body": "a"}, ShapeRules(columns={"text": "body"})) == "text"
    assert detect_shape({"q": "a", "a": "b"}, ShapeRules(columns={"prompt": "q", "response": "a"})) == "prompt_response"


def test_a_function_call_of_sharegpt_is_a_tool_call():
    turns = [*SHAREGPT[:1], {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'}]
    turns += [{"from": "observation", "value": "7"}]
    chat = read_row({"conversations": turns, "tools": '[{"name": "f"}]'}, "sharegpt", ShapeRules())
    assert chat.messages[1]["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
    assert chat.messages[2] == {"role": "tool", "content": "7"}
    assert chat.tools == normalize_tools([{"name": "f"}])


def test_other_keys_of_row_and_message_reach_the_template():
    message = {"role": "assistant", "content": "a", "reasoning_content": "b"}
    chat = read_row({"id": 1, "messages": [message], "tools": [{"name": "f"}]}, "messages", ShapeRules())
    assert chat == Chat([message], normalize_tools([{"name": "f"}]))


def test_messages_are_as_a_serving_engine_hands_them_to_the_template():
    function = {"name": "f", "arguments": '{"x": 1}'}
    call = {
        "role": "assistant",
        "content": None,
        "name": None,
        "tool_calls": [{"type": "function", "function": function}],
    }
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]}
    chat = read_row({"messages": [parts, call], "tools": []}, "messages", ShapeRules())
    assert chat.messages[0] == {"role": "user", "content": "a b c"}
    made = {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert chat.messages[1] == {"role": "assistant", "content": "", "tool_calls": [made]}
    assert chat.tools is None
    in_parts = read_row({"messages": [parts]}, "messages", ShapeRules(), content_parts=True)
    assert in_parts.messages[0]["content"] == [{"type": "text", "text": text} for text in "abc"]


ROLE = "assistant"
BAD = [
    ("messages", None, "not_an_object"),
    ("messages", [1], "not_an_object"),
    ("messages", "text", "not_an_object"),
    ("messages", {}, "no_messages"),
    ("messages", {"messages": []}, "no_messages"),
    ("messages", {"messages": {"role": "user"}}, "no_messages"),
    ("messages", {"messages": ["hello"]}, "bad_message"),
    ("messages", {"messages": "[secret"}, "no_messages"),
    ("messages", {"messages": [{"role": "user"}]}, "bad_message"),
    ("messages", {"messages": [{"content": "a"}]}, "bad_message"),
    ("messages", {"messages": [{"role": "user", "content": None}]}, "bad_message"),
    ("messages", {"messages": [{"role": 1, "content": "a"}]}, "bad_message"),
    ("messages", {"messages": [{"role": "user", "content": {}}]}, "bad_message"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "bad_message"),
    ("messages", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "not_text"),
    ("messages", {"messages": [{"role": "user", "content": [7]}]}, "not_text"),
    ("messages", {"messages": [{"role": ROLE, "content": "", "tool_calls": ["x"]}]}, "bad_message"),
    ("messages", {"messages": [{"role": ROLE, "content": "", "tool_calls": [{}]}]}, "bad_message"),
    (
        "messages",
        {"messages": [{"role": ROLE, "content": "", "tool_calls": [{"function": {"arguments": "{"}}]}]},
        "bad_message",
    ),
    (
        "messages",
        {"messages": [{"role": ROLE, "content": "", "tool_calls": [{"function": {"arguments": "[]"}}]}]},
        "bad_message",
    ),
    ("messages", {"messages": TURNS, "tools": 7}, "bad_message"),
    ("messages", {"messages": TURNS, "tools": "{"}, "bad_message"),
    ("messages", {"messages": TURNS, "tools": ["f"]}, "bad_message"),
    ("sharegpt", {"conversations": []}, "no_messages"),
    ("sharegpt", {"conversations": [{"from": "nobody", "value": "secret"}]}, "bad_message"),
    ("sharegpt", {"conversations": [{"value": "secret"}]}, "bad_message"),
    ("sharegpt", {"conversations": [{"from": "human", "value": None}]}, "bad_message"),
    ("sharegpt", {"conversations": [{"from": "function_call", "value": "secret"}]}, "bad_message"),
    ("prompt_response", {"prompt": "secret"}, "no_messages"),
    ("prompt_response", {"prompt": 7, "response": "secret"}, "no_messages"),
    ("text", {"text": 7}, "no_messages"),
    ("text", {}, "no_messages"),
    ("input_ids", {"input_ids": ["secret"]}, "bad_tokens"),
    ("input_ids", {"input_ids": [-1]}, "bad_tokens"),
    ("input_ids", {"input_ids": [True]}, "bad_tokens"),
    ("input_ids", {"input_ids": [2**31]}, "bad_tokens"),
    ("input_ids", {"input_ids": [1], "loss_mask": [1, 1]}, "bad_tokens"),
    ("input_ids", {"input_ids": [1], "loss_mask": [2]}, "bad_tokens"),
]


@pytest.mark.parametrize(("shape", "row", "reason"), BAD)
def test_a_row_that_is_not_of_its_shape_has_its_reason_and_does_not_tell_its_content(shape, row, reason):
    with pytest.raises(RowRejectedError) as error:
        read_row(row, shape, ShapeRules())
    assert error.value.reason == reason
    assert "secret" not in error.value.hint
