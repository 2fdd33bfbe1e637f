import pytest

from tasks.engine.architectures import ARCHITECTURES, get_architecture
from tasks.engine.errors import UnsupportedArchitectureError


def test_an_unknown_architecture_is_refused_with_those_that_are_known_and_where_to_add_it() -> None:
    with pytest.raises(UnsupportedArchitectureError) as error:
        get_architecture("GPT2LMHeadModel")
    line = str(error.value)
    assert "\n" not in line
    for part in ("GPT2LMHeadModel", *ARCHITECTURES, "tasks/engine/architectures.py"):
        assert part in line


@pytest.mark.parametrize("name", ["llamaforcausallm", "Llama", ""])
def test_names_are_exact(name: str) -> None:
    with pytest.raises(UnsupportedArchitectureError):
        get_architecture(name)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_row_names_what_sglang_has(name: str) -> None:
    """The setter, and whether the attention is MLA, by SGLang's own classes."""
    import inspect

    from tasks.engine import cpu_kernels

    cpu_kernels.install()
    from sglang.srt.models.registry import ModelRegistry

    row = get_architecture(name)
    model, _ = ModelRegistry.resolve_model_cls([name])
    assert callable(getattr(model, row.setter))
    assert ("dispatch_attn_forward_method" in inspect.getsource(inspect.getmodule(model))) == row.mla
