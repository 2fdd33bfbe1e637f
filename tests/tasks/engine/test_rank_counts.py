"""How many ranks can share a model, by its heads and its experts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tasks.engine.errors import DeviceError
from tasks.engine.models import ModelInfo, read_model
from tasks.engine.rank_counts import check_ranks

# Of published models: heads, heads of keys and values, and the ranks that can share them.
SHARED = {
    "SmolLM2-135M": (9, 3, {1, 3, 9}),
    "Llama-3-8B": (32, 8, {1, 2, 4, 8, 16, 32}),
    "Qwen2.5-7B": (28, 4, {1, 2, 4, 28}),
    "Phi-3-medium": (40, 10, {1, 2, 5, 10, 20, 40}),
    "DeepSeek-V3": (128, 128, {1, 2, 4, 8, 16, 32, 64, 128}),
}


@pytest.fixture
def llama(tiny_model: Callable[[str], Path]) -> ModelInfo:
    return read_model(tiny_model("llama"))


@pytest.mark.parametrize("name", SHARED)
def test_gpus_share_whole_heads_as_many_each(llama: ModelInfo, name: str) -> None:
    heads, key_heads, shared = SHARED[name]
    model = replace(llama, num_heads=heads, num_key_heads=key_heads)
    for ranks in range(1, heads + 2):
        if ranks in shared:
            check_ranks(model, "cuda", ranks)
        else:
            with pytest.raises(DeviceError, match=f"{ranks} ranks cannot share {heads} attention heads"):
                check_ranks(model, "cuda", ranks)


def test_the_ranks_that_there_could_be_are_named(llama: ModelInfo) -> None:
    with pytest.raises(DeviceError) as error:
        check_ranks(replace(llama, num_heads=9, num_key_heads=3), "cuda", 7)
    assert str(error.value) == (
        "devices: 7 ranks cannot share 9 attention heads, 3 of them with keys and values of their own; "
        "choose :tp3, :tp9 or an engine for each device, without :tp"
    )


def test_a_config_that_leaves_the_heads_to_transformers_is_left_to_sglang(llama: ModelInfo) -> None:
    check_ranks(replace(llama, num_heads=None, num_key_heads=None), "cuda", 7)


@pytest.mark.parametrize("name", ["minimax-m2", "qwen3-next", "qwen2-moe", "kimi-k2.5", "gemma3-wrapped"])
def test_on_a_cpu_sglang_pads_but_not_for_every_class(
    llama: ModelInfo, tiny_model: Callable[[str], Path], name: str
) -> None:
    check_ranks(llama, "cpu", 3)
    with pytest.raises(DeviceError, match="3 ranks cannot share 8 attention heads"):
        check_ranks(read_model(tiny_model(name)), "cpu", 3)
    check_ranks(read_model(tiny_model(name)), "cpu", 2)


@pytest.mark.parametrize(
    ("name", "ep_size", "says"),
    [
        ("llama", 2, ":ep2 deals out experts, and LlamaForCausalLM here has none; leave it out"),
        ("gpt-oss", 2, "SGLang 0.5.17 cannot deal out the experts of GptOssForCausalLM; leave :ep2 out"),
        ("qwen3-moe", 3, "8 experts cannot be dealt out in 3 equal parts; choose :ep2, :ep4, :ep8 or leave :ep3 out"),
    ],
)
def test_experts_that_cannot_be_dealt_out(
    tiny_model: Callable[[str], Path], name: str, ep_size: int, says: str
) -> None:
    model = read_model(tiny_model(name))
    with pytest.raises(DeviceError) as error:
        check_ranks(replace(model, num_heads=24, num_key_heads=24), "cuda", 12, ep_size)
    assert str(error.value) == f"devices: {says}"
    check_ranks(read_model(tiny_model("deepseek-v3")), "cuda", 8, 8)
