from collections.abc import Callable
from pathlib import Path

import pytest
from quantized_models import QUANTIZED_MODELS

from tasks.engine.base import EngineOptions
from tasks.engine.errors import PrecisionError
from tasks.engine.loading import load_engine


def options_for(model: Path, **changes: object) -> EngineOptions:
    options = {"compute_dtype": "bfloat16", "output_dtype": "bfloat16", "device": "cpu", "max_batch_tokens": 512}
    return EngineOptions(model=model, layers=("final",), **(options | changes))


@pytest.mark.parametrize("name", QUANTIZED_MODELS)
def test_a_quantized_model_is_refused_on_a_cpu_before_it_is_loaded(
    quantized: Callable[[str], tuple[Path, Path]], name: str
) -> None:
    folder, _ = quantized(name)
    with pytest.raises(PrecisionError, match=r"SGLang cannot run .* on a CPU; choose a GPU"):
        load_engine(options_for(folder))


def test_quantization_as_it_is_loaded_is_refused_on_a_cpu(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(PrecisionError, match=r"SGLang cannot run online fp8 on a CPU"):
        load_engine(options_for(tiny_model("llama"), quantization="fp8"))


def test_a_quantized_model_is_not_computed_in_float32(quantized: Callable[[str], tuple[Path, Path]]) -> None:
    folder, _ = quantized("llama-gptq")
    with pytest.raises(PrecisionError, match=r"dtype float32 .*\(bfloat16, float16\)"):
        load_engine(options_for(folder, device="cuda", compute_dtype="float32"))
