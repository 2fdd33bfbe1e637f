"""ShareGPT's turns, each with `from` and `value`, as OpenAI's messages."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.inputs.json_rows import parse_text
from tasks.rejections import RowRejectedError

FUNCTION_CALL = "function_call"
ROLE_NAMES: dict[str, str] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "developer",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
    FUNCTION_CALL: FUNCTION_CALL,
}


def convert_turns(turns: Sequence[Any], role_names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Turn a conversation into messages; a `function_call` is an assistant's tool call as JSON.

    Raises:
        RowRejectedError: `bad_message`.
    """
    return [_convert(index, turn, role_names) for index, turn in enumerate(turns)]


def _convert(index: int, turn: Any, role_names: Mapping[str, str]) -> dict[str, Any]:
    if not isinstance(turn, Mapping) or not isinstance(turn.get("from"), str):
        raise RowRejectedError("bad_message", f'turn {index} is no object with a "from"')
    role = role_names.get(turn["from"])
    if role is None:
        raise RowRejectedError("bad_message", f"turn {index} is from a role that is not known")
    if role == FUNCTION_CALL:
        return {"role": "assistant", "content": "", "tool_calls": _parse_calls(index, turn.get("value"))}
    return {"role": role, "content": turn.get("value")}


def _parse_calls(index: int, value: Any) -> list[dict[str, Any]]:
    try:
        calls = parse_text(value) if isinstance(value, str) else value
        calls = calls if isinstance(calls, list) else [calls]
        return [{"type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]
    except (ValueError, TypeError, KeyError) as error:
        raise RowRejectedError(
            "bad_message", f"turn {index} is a function call without JSON of name and arguments"
        ) from error
