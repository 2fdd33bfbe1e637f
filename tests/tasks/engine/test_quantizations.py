import copy
from typing import Any

import pytest
from published_quantizations import AWQ, FP8_BLOCK, FP8_CHANNEL, GPTQ, PACKED, PUBLISHED

from tasks.engine.quantizations import QUANTIZED_DTYPES, compute_dtypes, describe_quantization, rounds_inputs


def weights(config: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a compressed-tensors config whose weights differ."""
    changed = copy.deepcopy(config)
    changed["config_groups"]["group_0"]["weights"].update(fields)
    return changed


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_checkpoint_is_described_in_one_line(name: str) -> None:
    config, expected = PUBLISHED[name]
    assert describe_quantization(config) == expected
    assert describe_quantization(dict(reversed(config.items()))) == expected


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        (FP8_BLOCK, FP8_BLOCK | {"weight_block_size": [64, 128]}),
        (FP8_BLOCK, {"quant_method": "fp8", "activation_scheme": "static"}),
        (FP8_CHANNEL, weights(FP8_CHANNEL, strategy="tensor")),
        (PACKED, weights(PACKED, group_size=128)),
        (PACKED, weights(PACKED, num_bits=8)),
        (PACKED, weights(PACKED, symmetric=False)),
        (PACKED, weights(PACKED, actorder="group")),
        (PACKED, PACKED | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}),
        (GPTQ, GPTQ | {"bits": 8}),
        (GPTQ, GPTQ | {"desc_act": True}),
        (GPTQ, GPTQ | {"checkpoint_format": "gptq_v2"}),
        (AWQ, AWQ | {"group_size": 64}),
        (AWQ, AWQ | {"version": "gemv"}),
    ],
)
def test_schemes_that_differ_in_numbers_have_different_names(config: dict[str, Any], changed: dict[str, Any]) -> None:
    assert describe_quantization(config) != describe_quantization(changed)


@pytest.mark.parametrize(
    ("config", "same"),
    [
        (PACKED, PACKED | {"quantization_status": "frozen", "version": "0.12.0", "ignore": ["lm_head"]}),
        (PACKED, PACKED | {"quant_method": "compressed_tensors"}),
        (PACKED, weights(PACKED, observer="mse", observer_kwargs={"grid": 20})),
        (GPTQ, GPTQ | {"damp_percent": 0.1, "meta": {"quantizer": ["gptqmodel:1.0"]}, "dataset": ["c4"]}),
    ],
)
def test_how_the_values_were_found_is_no_part_of_the_name(config: dict[str, Any], same: dict[str, Any]) -> None:
    assert describe_quantization(config) == describe_quantization(same)


def test_groups_of_layers_are_named_in_one_order() -> None:
    other = weights(PACKED, num_bits=8)["config_groups"]["group_0"]
    both = PACKED["config_groups"] | {"group_1": other}
    turned = dict(reversed(both.items()))
    described = describe_quantization(PACKED | {"config_groups": both})
    assert described == describe_quantization(PACKED | {"config_groups": turned})
    assert (described.count("num_bits=4"), described.count("num_bits=8")) == (1, 1)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sglang_computes_a_published_checkpoint_in_these_dtypes(name: str) -> None:
    config, _ = PUBLISHED[name]
    assert set(compute_dtypes(config)) == sglang_dtypes(config)
    assert compute_dtypes(config) == QUANTIZED_DTYPES


@pytest.mark.parametrize(
    "config",
    [GPTQ | {"sym": False}, GPTQ | {"bits": 3}, GPTQ | {"group_size": 1024}, AWQ | {"zero_point": False}],
)
def test_without_marlin_there_is_only_float16(config: dict[str, Any]) -> None:
    assert compute_dtypes(config) == ("float16",)
    assert sglang_dtypes(config, marlin=False) == {"float16"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_enters_a_layer_is_rounded_where_the_config_says_so(name: str) -> None:
    assert rounds_inputs(PUBLISHED[name][0]) == name.startswith("fp8")
    assert not rounds_inputs(None)


def sglang_dtypes(config: dict[str, Any], *, marlin: bool = True) -> set[str]:
    """Ask the class that SGLang loads such a checkpoint by on a GPU."""
    from tasks.engine import cpu_kernels

    cpu_kernels.install()
    from sglang.srt.layers.quantization import QUANTIZATION_METHODS

    method = config["quant_method"] + ("_marlin" if marlin and config["quant_method"] in {"gptq", "awq"} else "")
    taken = QUANTIZATION_METHODS[method]
    if not method.endswith("_marlin"):
        made = taken.from_config(copy.deepcopy(config))
        return {str(dtype).removeprefix("torch.") for dtype in made.get_supported_act_dtypes()}
    return {str(dtype).removeprefix("torch.") for dtype in taken.get_supported_act_dtypes()}
