from pathlib import Path

import pytest
from published_quantizations import AWQ, FP8_BLOCK, GPTQ

from tasks.engine.errors import PrecisionError
from tasks.engine.models import ModelInfo
from tasks.engine.precision import Precision, choose_precision
from tasks.engine.quantizations import compute_dtypes, describe_quantization, rounds_inputs


def model(dtype: str, quantization: dict | None = None) -> ModelInfo:
    return ModelInfo(
        path=Path("m"),
        architecture="LlamaForCausalLM",
        num_layers=2,
        hidden_size=8,
        vocab_size=10,
        context_length=16,
        dtype=dtype,
        quantization=None if quantization is None else describe_quantization(quantization),
        compute_dtypes=compute_dtypes(quantization),
        rounds_inputs=rounds_inputs(quantization),
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_auto_on_a_gpu_is_the_dtype_of_the_checkpoint(dtype: str) -> None:
    assert choose_precision(model(dtype), "cuda") == Precision(dtype, None, None)


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
        ("float64", None, "float32"),
    ],
)
def test_auto_on_a_gpu_is_a_dtype_that_sglang_has_kernels_for(
    dtype: str, quantization: dict | None, expected: str
) -> None:
    assert choose_precision(model(dtype, quantization), "cuda").compute_dtype == expected


def test_online_quantization_names_states_and_tells_sglang() -> None:
    assert choose_precision(model("bfloat16"), "cuda", quantization="fp8") == Precision("bfloat16", "online fp8", "fp8")
    assert choose_precision(model("float32"), "cuda", quantization="fp8").compute_dtype == "bfloat16"


@pytest.mark.parametrize(("device", "dtype"), [("cpu", "float32"), ("cuda", "bfloat16"), ("cuda", "float16")])
def test_deterministic_leaves_the_dtype_as_it_is(device: str, dtype: str) -> None:
    assert choose_precision(model("float32"), device, dtype, deterministic=True).compute_dtype == dtype


@pytest.mark.parametrize(
    ("device", "quantization", "asked", "words"),
    [
        ("cpu", FP8_BLOCK, {}, r"SGLang cannot run fp8 .*128x128 on a CPU; choose a GPU"),
        ("cpu", None, {"quantization": "fp8"}, r"SGLang cannot run online fp8 on a CPU; choose a GPU"),
        ("cuda", FP8_BLOCK, {"quantization": "fp8"}, r"quantized already \(fp8 .*leave quantization at auto"),
        ("cuda", FP8_BLOCK, {"dtype": "float32"}, r"dtype float32 .*\(bfloat16, float16\)"),
        ("cuda", None, {"dtype": "float32", "quantization": "fp8"}, r"dtype float32 .*\(bfloat16, float16\)"),
        ("cuda", GPTQ | {"sym": False}, {"dtype": "bfloat16"}, r"dtype bfloat16 .*\(float16\)"),
        ("cuda", None, {"dtype": "float32", "deterministic": True}, r"batch-invariant .* choose dtype bfloat16"),
    ],
)
def test_what_sglang_cannot_run_is_refused_in_one_line(
    device: str, quantization: dict | None, asked: dict, words: str
) -> None:
    with pytest.raises(PrecisionError, match=words) as error:
        choose_precision(model("bfloat16", quantization), device, **asked)
    assert "\n" not in str(error.value)
