"""OpenAI's messages and tools as a serving engine hands them to the chat template.

As SGLang 0.5.17 does (srt/entrypoints/openai/serving_chat.py and srt/parser/jinja_template_utils.py): a null content is
empty, other null fields are left out, arguments of tool calls are objects, and parts of text are joined by a space
unless the template takes parts. Tools have the fields of its protocol.py, in that order, given or not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.inputs.json_rows import parse_text
from tasks.rejections import RowRejectedError

# Beside the content, what an assistant may have written.
WRITTEN = ("tool_calls", "reasoning_content", "reasoning", "thinking")
_TEXT_PARTS = {"text", "input_text"}


def normalize_messages(messages: Sequence[Any], *, content_parts: bool) -> list[dict[str, Any]]:
    """Return the messages as the template gets them.

    Args:
        messages: as the row has them.
        content_parts: the template takes contents as lists of parts.

    Raises:
        RowRejectedError: `bad_message` or `not_text`.
    """
    return [_normalize(index, message, content_parts) for index, message in enumerate(messages)]


def normalize_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as the template gets them.

    Raises:
        RowRejectedError: `bad_message`.
    """
    return [_normalize_tool(index, tool) for index, tool in enumerate(tools)]


def _normalize_tool(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function", tool)  # without OpenAI's wrapper, as transformers takes it too
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RowRejectedError("bad_message", f"tool {index} has no function with a name")
    later = tool.get("defer_loading")
    given = {"strict": False} | {key: value for key, value in function.items() if value is not None}
    made = {key: given.get(key) for key in ("description", "name", "parameters", "strict")}
    if (own := given.get("defer_loading", later)) is not None:
        made["defer_loading"] = own
    kind = tool.get("type") if "function" in tool else None
    return {"type": kind or "function", "function": made, "defer_loading": later if "function" in tool else None}


def _normalize(index: int, message: Any, content_parts: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RowRejectedError("bad_message", f"message {index} is a {type(message).__name__}")
    if not isinstance(message.get("role"), str):
        raise RowRejectedError("bad_message", f"the role of message {index} is {type(message.get('role')).__name__}")
    made = {key: value for key, value in message.items() if value is not None}
    made["content"] = _normalize_content(index, message, content_parts)
    if message["role"] == "assistant" and isinstance(message.get("tool_calls"), list):
        made["tool_calls"] = [_normalize_call(index, call) for call in message["tool_calls"]]
    return made


def _normalize_content(index: int, message: Mapping[str, Any], content_parts: bool) -> Any:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if content is None and message["role"] == "assistant":
        return ""
    if not isinstance(content, list):
        raise RowRejectedError("bad_message", f"the content of message {index} is {type(content).__name__}")
    texts = [_text_of(index, part) for part in content]
    if content_parts and message["role"] != "tool":
        return [{"type": "text", "text": text} for text in texts]
    return " ".join(texts)


def _text_of(index: int, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type") not in _TEXT_PARTS:
        raise RowRejectedError("not_text", f"message {index} has a part that is no text")
    if not isinstance(part.get("text"), str):
        raise RowRejectedError("bad_message", f"message {index} has a part of text without a text")
    text: str = part["text"]
    return text


def _normalize_call(index: int, call: Any) -> Any:
    """Turn arguments that are JSON text into the object, as templates expect them."""
    if not isinstance(call, Mapping):
        raise RowRejectedError("bad_message", f"message {index} has a tool call that is a {type(call).__name__}")
    if "function" not in call and "arguments" in call:  # without OpenAI's wrapper, as transformers takes it too
        return {**call, "arguments": _parse_arguments(index, call["arguments"])}
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise RowRejectedError("bad_message", f"message {index} has a tool call without a function")
    arguments = _parse_arguments(index, function.get("arguments"))
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_arguments(index: int, arguments: Any) -> Mapping[str, Any]:
    if isinstance(arguments, str):
        try:
            arguments = parse_text(arguments)
        except ValueError as error:
            raise RowRejectedError(
                "bad_message", f"message {index} has a tool call whose arguments are no JSON ({error})"
            ) from error
    if not isinstance(arguments, Mapping):
        kind = type(arguments).__name__
        raise RowRejectedError("bad_message", f"message {index} has a tool call whose arguments are a {kind}")
    return arguments
