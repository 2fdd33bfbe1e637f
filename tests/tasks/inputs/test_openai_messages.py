"""Tools as the template gets them, beside SGLang's own protocol."""

from typing import Any

import pytest
import torch

from tasks.engine import cpu_kernels
from tasks.inputs.openai_messages import normalize_tools
from tasks.rejections import RowRejectedError

PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "description": "Look.", "parameters": PARAMETERS}},
    {"function": {"parameters": PARAMETERS, "name": "weather"}, "more": 1},
    {"type": "function", "function": {"name": "weather", "strict": True, "more": 2, "description": None}},
    {"type": "function", "function": {"name": "weather"}, "defer_loading": True},
    {"type": "function", "function": {"name": "weather", "defer_loading": False}},
]


@pytest.mark.parametrize("tool", TOOLS)
def test_a_tool_is_what_sglang_makes_of_it(tool: dict[str, Any]) -> None:
    if not torch.cuda.is_available():
        cpu_kernels.install()
    from sglang.srt.entrypoints.openai.protocol import Tool

    served = Tool.model_validate(tool).model_dump()
    [ours] = normalize_tools([tool])
    assert ours == served
    assert list(ours) == list(served)
    assert list(ours["function"]) == list(served["function"])


def test_a_function_without_its_wrapper_is_taken_as_one() -> None:
    function = {"name": "weather", "description": "Look.", "parameters": PARAMETERS}
    assert normalize_tools([function]) == normalize_tools([{"type": "function", "function": function}])


@pytest.mark.parametrize(
    "tool", [{}, {"function": None}, {"function": {"name": 1}}, {"type": "function", "function": {}}]
)
def test_a_tool_without_a_name_rejects_the_row(tool: dict[str, Any]) -> None:
    with pytest.raises(RowRejectedError, match="tool 0 has no function with a name"):
        normalize_tools([tool])
