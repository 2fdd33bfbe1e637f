import inspect
import re
from typing import Any

import pytest

from tasks.engine import cpu_blocks, cpu_kernels
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


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_row_names_what_sglang_has(name: str) -> None:
    """The setter, and whether the attention is MLA, by SGLang's own classes; what it needs on a CPU, by ours."""
    model = _causal_lm(name)
    row = get_architecture(name)
    assert all(callable(getattr(cpu_blocks, function)) for function in row.on_cpu)
    assert row.setter is None or callable(getattr(model, row.setter))
    assert ("dispatch_attn_forward_method" in inspect.getsource(inspect.getmodule(model))) == row.mla


def _causal_lm(name: str) -> Any:
    """The class of the language model, inside its wrapper where there is one."""
    cpu_kernels.install()
    from sglang.srt.models.registry import ModelRegistry

    model, _ = ModelRegistry.resolve_model_cls([ARCHITECTURES[name].loaded_as or name])
    if not ARCHITECTURES[name].causal_lm:
        return model
    inner = re.search(rf"self\.{ARCHITECTURES[name].causal_lm} = (\w+ForCausalLM)\(", inspect.getsource(model))
    return ModelRegistry.resolve_model_cls([inner[1]])[0]
