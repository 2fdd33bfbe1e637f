import inspect
import re
from typing import Any

import pytest

from tasks.engine.architectures import ARCHITECTURES, get_architecture
from tasks.engine.errors import UnsupportedArchitectureError


def test_an_unknown_architecture_is_refused_with_those_that_are_known_and_where_to_add_it() -> None:
    with pytest.raises(UnsupportedArchitectureError) as error:
        get_architecture("GPT2LMHeadModel")
    line = str(error.value)
    assert "\n" not in line
    for part in ("GPT2LMHeadModel", *ARCHITECTURES, "docs/adding-a-model.md"):
        assert part in line


@pytest.mark.parametrize("name", ["llamaforcausallm", "Llama", ""])
def test_names_are_exact(name: str) -> None:
    with pytest.raises(UnsupportedArchitectureError):
        get_architecture(name)


@pytest.mark.parametrize("name", [name for name, row in ARCHITECTURES.items() if row.needs_cuda])
def test_what_cannot_run_on_a_cpu_is_refused_there_with_the_reason(name: str) -> None:
    with pytest.raises(UnsupportedArchitectureError, match=r"on a CPU .*; choose a GPU") as error:
        get_architecture(name, "cpu")
    assert ARCHITECTURES[name].needs_cuda in str(error.value)
    assert get_architecture(name, "cuda") == ARCHITECTURES[name]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_row_names_what_sglang_has(name: str) -> None:
    """The setter, and whether the attention is MLA, by SGLang's own classes."""
    model = _causal_lm(name)
    row = get_architecture(name)
    assert row.setter is None or callable(getattr(model, row.setter))
    assert ("dispatch_attn_forward_method" in inspect.getsource(inspect.getmodule(model))) == row.mla


def _causal_lm(name: str) -> Any:
    """The class of the language model, inside its wrapper where there is one."""
    from tasks.engine import cpu_kernels

    cpu_kernels.install()
    from sglang.srt.models.registry import ModelRegistry

    model, _ = ModelRegistry.resolve_model_cls([name])
    if not ARCHITECTURES[name].causal_lm:
        return model
    inner = re.search(rf"self\.{ARCHITECTURES[name].causal_lm} = (\w+ForCausalLM)\(", inspect.getsource(model))
    return ModelRegistry.resolve_model_cls([inner[1]])[0]
