from dataclasses import replace
from pathlib import Path

import pytest
from published_quantizations import AWQ, FP8_BLOCK, GPTQ

from tasks.engine.errors import PrecisionError
from tasks.engine.models import ModelInfo
from tasks.engine.precision import Precision, choose_precision
from tasks.engine.quantizations import compute_dtypes, describe_quantization, rounds_inputs, widest_split


def model(dtype: str, quantization: dict | None = None) -> ModelInfo:
    return ModelInfo(
        path=Path("m"),
        architecture="LlamaForCausalLM",
        num_layers=2,
        hidden_size=8,
        vocab_size=10,
        num_heads=2,
        num_key_heads=1,
        context_length=16,
        dtype=dtype,
        quantization=None if quantization is None else describe_quantization(quantization),
        compute_dtypes=compute_dtypes(quantization),
        rounds_inputs=rounds_inputs(quantization),
    )


@pytest.mark.parametrize(
    ("dtype", "chosen"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "bfloat16")]
)
def test_auto_on_a_gpu_is_the_dtype_of_the_checkpoint_where_sglang_has_kernels(dtype: str, chosen: str) -> None:
    assert choose_precision(model(dtype), "cuda") == Precision(chosen, None, None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_auto_on_a_cpu_is_float32_and_any_dtype_can_be_chosen(dtype: str) -> None:
    assert choose_precision(model(dtype), "cpu").compute_dtype == "float32"
    assert choose_precision(model("float32"), "cpu", dtype).compute_dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "quantization", "expected"),
    [
        ("bfloat16", FP8_BLOCK, "bfloat16"),
        ("float16", AWQ, "float16"),
        ("float32", FP8_BLOCK, "bfloat16"),  # no quantized kernel computes in float32
        ("float8_e4m3fn", FP8_BLOCK, "bfloat16"),
        ("bfloat16", GPTQ | {"sym": False}, "float16"),  # no Marlin kernel
        ("float64", None, "bfloat16"),
    ],
)
def test_auto_on_a_gpu_is_a_dtype_that_sglang_has_kernels_for(
    dtype: str, quantization: dict | None, expected: str
) -> None:
    assert choose_precision(model(dtype, quantization), "cuda").compute_dtype == expected


def test_online_quantization_names_states_and_tells_sglang() -> None:
    assert choose_precision(model("bfloat16"), "cuda", quantization="fp8") == Precision("bfloat16", "online fp8", "fp8")
    assert choose_precision(model("float32"), "cuda", quantization="fp8").compute_dtype == "bfloat16"


def test_an_architecture_may_have_fewer_dtypes_on_a_gpu() -> None:
    gpt_oss = replace(model("float16"), architecture="GptOssForCausalLM")
    assert choose_precision(gpt_oss, "cuda").compute_dtype == "bfloat16"
    assert choose_precision(gpt_oss, "cpu", "float16").compute_dtype == "float16"
    with pytest.raises(PrecisionError, match=r"dtype float16 .* on a GPU \(bfloat16\)"):
        choose_precision(gpt_oss, "cuda", "float16")
    with pytest.raises(PrecisionError, match=r"GptOssForCausalLM on a GPU in bfloat16, and gptq .* in float16"):
        choose_precision(replace(model("float16", GPTQ | {"sym": False}), architecture="GptOssForCausalLM"), "cuda")


def test_experts_cut_narrower_than_a_group_of_scales_are_refused() -> None:
    """768 columns in groups of 128: 5 parts are wider than a group, 6 are not."""
    cut = replace(model("float16", GPTQ), widest_split=widest_split(GPTQ, 768))
    assert choose_precision(cut, "cuda", split=4).compute_dtype == "float16"
    with pytest.raises(PrecisionError, match=r"gptq .* cut into 8, at most 5 would be right; choose a smaller tp"):
        choose_precision(cut, "cuda", split=8)


@pytest.mark.parametrize(
    ("config", "width", "expected"),
    [(None, 768, None), (FP8_BLOCK, 768, None), (GPTQ, None, None), (GPTQ | {"group_size": -1}, 768, None),
     (GPTQ, 128, 0), (AWQ, 129, 1), (AWQ, 1024, 7)],
)  # fmt: skip
def test_every_part_is_wider_than_a_group(config: dict | None, width: int | None, expected: int | None) -> None:
    assert widest_split(config, width) == expected


@pytest.mark.parametrize(
    ("device", "quantization", "asked", "words"),
    [
        ("cpu", FP8_BLOCK, {}, r"SGLang cannot run fp8 .*128x128 on a CPU; choose a GPU"),
        ("cpu", None, {"quantization": "fp8"}, r"SGLang cannot run online fp8 on a CPU; choose a GPU"),
        ("cuda", FP8_BLOCK, {"quantization": "fp8"}, r"quantized already \(fp8 .*leave quantization at auto"),
        ("cuda", FP8_BLOCK, {"dtype": "float32"}, r"dtype float32 .*\(bfloat16, float16\)"),
        ("cuda", None, {"dtype": "float32", "quantization": "fp8"}, r"dtype float32 .*\(bfloat16, float16\)"),
        ("cuda", GPTQ | {"sym": False}, {"dtype": "bfloat16"}, r"dtype bfloat16 .*\(float16\)"),
        ("cuda", None, {"dtype": "float32"}, r"dtype float32 .* on a GPU \(bfloat16, float16\); leave dtype at auto"),
    ],
)
def test_what_sglang_cannot_run_is_refused_in_one_line(
    device: str, quantization: dict | None, asked: dict, words: str
) -> None:
    with pytest.raises(PrecisionError, match=words) as error:
        choose_precision(model("bfloat16", quantization), device, **asked)
    assert "\n" not in str(error.value)
