"""The tiny quantized checkpoints are what their formats define, by routes that share no code with their making."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from quantized_models import QUANTIZED_MODELS, SCHEMES, Tensors, quantized_modules
from quantized_weights import FP8_MAX
from safetensors.torch import load_file

from tasks.engine.models import read_model
from tasks.engine.quantizations import describe_quantization

Array = npt.NDArray[Any]
Quantized = Callable[[str], tuple[Path, Path]]

# Which nibble of an AWQ word holds which of its 8 columns.
AWQ_NIBBLE = np.array([0, 4, 1, 5, 2, 6, 3, 7])


def tensors_of(folder: Path) -> Tensors:
    return load_file(folder / "model.safetensors")


def nibble(words: Array, place: Array) -> Array:
    return (words.view(np.uint32) >> (4 * place).astype(np.uint32)) & 15


def packed(parts: dict[str, Array], n: Array, k: Array) -> Array:
    return (nibble(parts["weight_packed"][n, k // 8], k % 8) - 8.0) * parts["weight_scale"][n, k // 32]


def gptq(parts: dict[str, Array], n: Array, k: Array) -> Array:
    group = parts["g_idx"][k]
    zero = nibble(parts["qzeros"][group, n // 8], n % 8) + 1.0
    return (nibble(parts["qweight"][k // 8, n], k % 8) - zero) * parts["scales"][group, n]


def awq(parts: dict[str, Array], n: Array, k: Array) -> Array:
    place, group = AWQ_NIBBLE[n % 8], k // 128
    zero = nibble(parts["qzeros"][group, n // 8], place) * 1.0
    return (nibble(parts["qweight"][k, n // 8], place) - zero) * parts["scales"][group, n]


# The number that stands in row n (of outputs) and column k (of inputs), by each format's definition.
NUMBERS: dict[str, Callable[[dict[str, Array], Array, Array], Array]] = {
    "fp8-block": lambda parts, n, k: parts["weight"][n, k] * parts["weight_scale_inv"][n // 128, k // 128],
    "fp8-channel": lambda parts, n, k: parts["weight"][n, k] * parts["weight_scale"][n, 0 * k],
    "fp8-tensor": lambda parts, n, k: parts["weight"][n, k] * parts["weight_scale"][0],
    "packed": packed,
    "packed-experts": packed,
    "gptq": gptq,
    "awq": awq,
}


def parts_of(module: str, tensors: Tensors) -> dict[str, Array]:
    """Return the tensors of a module as numpy: those of fewer than 32 bits as float32, exactly."""
    own = {name.rpartition(".")[2]: tensor for name, tensor in tensors.items() if name.rpartition(".")[0] == module}
    return {name: (tensor.float() if tensor.is_floating_point() else tensor).numpy() for name, tensor in own.items()}


@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_every_number_is_that_of_the_twin_by_the_definition_of_the_format(quantized: Quantized, name: str) -> None:
    folder, twin = quantized(name)
    _, scheme = QUANTIZED_MODELS[name]
    tensors, expected = tensors_of(folder), tensors_of(twin)
    modules = quantized_modules(scheme, expected)
    assert modules
    for module in modules:
        numbers = expected[f"{module}.weight"].numpy()
        n, k = np.indices(numbers.shape)
        assert np.array_equal(NUMBERS[scheme](parts_of(module, tensors), n, k).astype(np.float32), numbers), module
    for key in set(expected) - {f"{module}.weight" for module in modules}:
        assert torch.equal(tensors[key].float(), expected[key]), key


@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_quantization_changed_the_weights_by_what_its_bits_allow(quantized: Quantized, name: str) -> None:
    """Neither nothing, nor all: 2.6 % of uniform rounding to 3 bits of mantissa, some 9 % to 4 bits."""
    _, scheme = QUANTIZED_MODELS[name]
    folder, twin = quantized(name)
    original, changed = tensors_of(folder.parent / "original"), tensors_of(twin)
    low, high = (0.015, 0.04) if scheme.startswith("fp8") else (0.05, 0.15)
    for module in quantized_modules(scheme, changed):
        before, after = original[f"{module}.weight"].float(), changed[f"{module}.weight"]
        assert low < float((after - before).norm() / before.norm()) < high, module


@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_sglang_takes_the_config_and_quantizes_the_same_modules(quantized: Quantized, name: str) -> None:
    from tasks.engine import cpu_kernels

    cpu_kernels.install()
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
    from sglang.srt.layers.quantization.compressed_tensors.utils import should_ignore_layer
    from sglang.srt.model_loader.weight_utils import get_quant_config

    folder, twin = quantized(name)
    _, scheme = QUANTIZED_MODELS[name]
    model = ModelConfig(str(folder), dtype="auto")
    assert model.quantization.removesuffix("_marlin") == SCHEMES[scheme].config["quant_method"]
    assert str(model.dtype) == f"torch.{SCHEMES[scheme].dtype}"
    quantization = get_quant_config(model, LoadConfig(), {})
    if isinstance(quantization, CompressedTensorsConfig):
        expected = tensors_of(twin)
        linear = quantized_modules("all", expected)
        chosen = [module for module in linear if not should_ignore_layer(module, quantization.ignore)]
        assert chosen == quantized_modules(scheme, expected)
    else:
        assert quantization.get_name() == model.quantization


# Of experts in compressed-tensors, transformers 5.12.1 makes up random weights, and says so in a table; of rows that
# are no multiple of 128 it takes the wrong blocks (DeepSeek's kv_a_proj_with_mqa); GPTQ and AWQ need more packages.
READ_BY_TRANSFORMERS = [
    "llama-fp8-block",
    "qwen3-moe-fp8-block",
    "llama-fp8-channel",
    "llama-fp8-tensor",
    "llama-packed",
]


@pytest.mark.parametrize("name", READ_BY_TRANSFORMERS)
def test_transformers_reads_the_numbers_of_the_twin(quantized: Quantized, name: str) -> None:
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config

    folder, twin = quantized(name)
    read = (
        FineGrainedFP8Config(dequantize=True)
        if name.endswith("fp8-block")
        else CompressedTensorsConfig(run_compressed=False)
    )
    options = {"dtype": torch.float32, "local_files_only": True}
    theirs = AutoModelForCausalLM.from_pretrained(folder, quantization_config=read, **options).state_dict()
    for key, tensor in AutoModelForCausalLM.from_pretrained(twin, **options).state_dict().items():
        assert torch.equal(theirs[key], tensor), key


def test_sglang_reads_the_numbers_of_the_twin_where_it_can_without_a_gpu(quantized: Quantized) -> None:
    """Block FP8 and AWQ, by what SGLang itself has in plain torch for MLA."""
    from tasks.engine import cpu_kernels

    cpu_kernels.install()
    from sglang.kernels.ops.quantization.awq_triton import awq_dequantize_decomposition
    from sglang.srt.layers.quantization.fp8_utils import block_quant_dequant

    folder, twin = quantized("deepseek-v3-fp8-block")
    tensors, expected = tensors_of(folder), tensors_of(twin)
    for module in quantized_modules("fp8-block", expected):
        weight, scale = tensors[f"{module}.weight"], tensors[f"{module}.weight_scale_inv"]
        read = block_quant_dequant(weight, scale, [128, 128], torch.float32)
        assert torch.equal(read, expected[f"{module}.weight"])
    folder, twin = quantized("llama-awq")
    tensors, expected = tensors_of(folder), tensors_of(twin)
    for module in quantized_modules("awq", expected):
        parts = (tensors[f"{module}.{part}"] for part in ("qweight", "scales", "qzeros"))
        read = awq_dequantize_decomposition(*parts)
        assert torch.equal(read.T, expected[f"{module}.weight"].half())


@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_it_is_described_as_its_scheme(quantized: Quantized, name: str) -> None:
    folder, twin = quantized(name)
    _, scheme = QUANTIZED_MODELS[name]
    model = read_model(folder)
    assert model.quantization == describe_quantization(SCHEMES[scheme].config)
    assert model.dtype == SCHEMES[scheme].dtype
    assert model.rounds_inputs == scheme.startswith("fp8")
    assert read_model(twin).quantization is None


def test_static_input_scales_cover_the_inputs_of_every_layer(quantized: Quantized) -> None:
    folder, twin = quantized("llama-fp8-tensor")
    tensors = tensors_of(folder)
    modules = quantized_modules("fp8-tensor", tensors_of(twin))
    scales = [float(tensors[f"{module}.input_scale"]) for module in modules]
    assert len(scales) == len(modules)
    assert all(0 < scale * FP8_MAX < 1000 for scale in scales)
