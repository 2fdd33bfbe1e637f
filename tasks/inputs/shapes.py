"""What a row says: the shapes of rows, which one a file has, and rows as chats, texts or tokens."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from tasks.chats import Chat, PlainText, Row, TokenRow
from tasks.inputs.json_rows import parse_text
from tasks.inputs.openai_messages import normalize_messages, normalize_tools
from tasks.inputs.sharegpt import ROLE_NAMES, convert_turns
from tasks.rejections import RowRejectedError

ShapeName = Literal["messages", "sharegpt", "prompt_response", "input_ids", "text"]

# What each shape takes from a row, and under which names it is looked for, the usual one first.
NAMES: dict[str, tuple[str, ...]] = {
    "messages": ("messages", "conversations", "conversation"),
    "conversations": ("conversations", "conversation", "messages"),
    "prompt": ("prompt", "instruction", "question"),
    "response": ("response", "completion", "output", "answer"),
    "text": ("text",),
    "input_ids": ("input_ids",),
    "loss_mask": ("loss_mask",),
    "tools": ("tools",),
    "system": ("system",),
    "input": ("input",),  # of instruction, input, output: what the instruction is about
}
_MAX_ID = np.iinfo(np.int32).max


@dataclass(frozen=True)
class ShapeRules:
    """How rows are read, as the user chose it.

    Attributes:
        shape: the shape of all files; None to detect that of each.
        columns: which column to take for a name of `NAMES`.
        role_names: more names of roles, each with the role it stands for.
    """

    shape: ShapeName | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    role_names: Mapping[str, str] = field(default_factory=dict)

    def known_columns(self) -> frozenset[str]:
        """Return all names that a row may be read by."""
        return frozenset(self.columns.values()).union(*NAMES.values())

    def find(self, row: Mapping[str, Any], name: str) -> Any:
        """Return what a row has under a name of `NAMES`; None where it has nothing."""
        if name in self.columns:
            return row.get(self.columns[name])
        return next((row[alias] for alias in NAMES[name] if row.get(alias) is not None), None)

    def find_list(self, row: Mapping[str, Any], name: str) -> list[Any]:
        """Return the list that a row has under a name, or as the JSON text of one; empty where it has none."""
        found = self.find(row, name)
        if isinstance(found, str) and found.lstrip().startswith("["):
            with suppress(ValueError):
                found = parse_text(found)
        return found if isinstance(found, list) else []


def detect_shape(row: Any, rules: ShapeRules) -> ShapeName | None:
    """Tell the shape of a row; None if it has none that is known."""
    if rules.shape is not None:
        return rules.shape
    if not isinstance(row, Mapping):
        return None
    turns = rules.find_list(row, "messages")
    if turns:
        return "sharegpt" if isinstance(turns[0], Mapping) and "from" in turns[0] else "messages"
    if rules.find(row, "prompt") is not None and rules.find(row, "response") is not None:
        return "prompt_response"
    return next((shape for shape in ("input_ids", "text") if rules.find(row, shape) is not None), None)


def find_shape(rows: Iterable[Any], rules: ShapeRules) -> ShapeName:
    """Tell the shape that most of some rows have; of equally many the one that says more; messages if none has any."""
    counts = Counter(shape for row in rows if (shape := detect_shape(row, rules)) is not None)
    return max(get_args(ShapeName), key=lambda shape: counts[shape])


def read_row(row: Any, shape: ShapeName, rules: ShapeRules, *, content_parts: bool = False) -> Row:
    """Read one row.

    Args:
        row: a JSON value.
        shape: of its file.
        rules: names of columns and roles.
        content_parts: the chat template takes contents as lists of parts.

    Raises:
        RowRejectedError: the row is not of this shape.
    """
    if not isinstance(row, Mapping):
        raise RowRejectedError("not_an_object", f"it is a {type(row).__name__}")
    if shape == "input_ids":
        return _read_tokens(rules.find(row, "input_ids"), rules.find(row, "loss_mask"))
    if shape == "text":
        return PlainText(_require_text(rules.find(row, "text"), "text"))
    messages = _MESSAGES[shape](row, rules)
    return Chat(normalize_messages(messages, content_parts=content_parts), _read_tools(rules.find(row, "tools")))


def _openai(row: Mapping[str, Any], rules: ShapeRules) -> Sequence[Any]:
    messages = rules.find_list(row, "messages")
    if not messages:
        raise RowRejectedError("no_messages", "it has no list of messages")
    return messages


def _sharegpt(row: Mapping[str, Any], rules: ShapeRules) -> Sequence[Any]:
    turns = rules.find_list(row, "conversations")
    if not turns:
        raise RowRejectedError("no_messages", "it has no list of conversations")
    return [*_system(row, rules), *convert_turns(turns, {**ROLE_NAMES, **rules.role_names})]


def _prompt_response(row: Mapping[str, Any], rules: ShapeRules) -> Sequence[Any]:
    """Take a prompt and a response that are texts, or lists of messages."""
    prompt, response = rules.find(row, "prompt"), rules.find(row, "response")
    about = rules.find(row, "input")
    if isinstance(prompt, str) and isinstance(about, str) and about.strip():
        prompt = f"{prompt}\n\n{about}"
    return [
        *_system(row, rules),
        *_as_messages(prompt, "prompt", "user"),
        *_as_messages(response, "response", "assistant"),
    ]


_MESSAGES = {"messages": _openai, "sharegpt": _sharegpt, "prompt_response": _prompt_response}


def _as_messages(value: Any, name: str, role: str) -> Sequence[Any]:
    if isinstance(value, list) and value:
        return value
    return [{"role": role, "content": _require_text(value, name)}]


def _system(row: Mapping[str, Any], rules: ShapeRules) -> list[Any]:
    system = rules.find(row, "system")
    return [{"role": "system", "content": system}] if isinstance(system, str) and system else []


def _require_text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowRejectedError("no_messages", f"its {name} is {_kind(value)}, not a text")
    return value


def _read_tools(tools: Any) -> list[Any] | None:
    """Take tools as a list, or as the JSON text of one, which tables need for objects of several kinds."""
    if isinstance(tools, str):
        try:
            tools = parse_text(tools) if tools.strip() else None
        except ValueError as error:
            raise RowRejectedError("bad_message", f"its tools are no JSON ({error})") from error
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, Mapping) for tool in tools)):
        raise RowRejectedError("bad_message", f"its tools are {_kind(tools)}, not a list of objects")
    return normalize_tools(tools) if tools else None


def _read_tokens(ids: Any, mask: Any) -> TokenRow:
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i <= _MAX_ID for i in ids):
        raise RowRejectedError("bad_tokens", "its input_ids are not a list of ids")
    if mask is None:
        mask = [1] * len(ids)
    if not isinstance(mask, list) or len(mask) != len(ids) or not all(bit in (0, 1) for bit in mask):
        raise RowRejectedError("bad_tokens", f"its loss_mask does not fit {len(ids)} ids")
    return TokenRow(_array(ids, np.int32), _array(mask, np.uint8))


def _array(values: list[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    return np.array(values, dtype)


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
