from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from engine_jobs import make_engine_job

from tasks.engine_start import _options


@pytest.mark.parametrize(
    ("name", "quantization", "rounds_inputs"),
    [
        ("llama-fp8-channel", None, True),
        ("llama-packed", None, False),
        ("original", None, False),
        ("original", "fp8", True),
    ],
)
def test_an_engine_is_told_how_to_quantize_and_whether_that_rounds_inputs(
    quantized: Callable[[str], tuple[Path, Path]], tmp_path: Path, name: str, quantization: str, *, rounds_inputs: bool
) -> None:
    folder, _ = quantized("llama-packed" if name == "original" else name)
    model = folder.parent / "original" if name == "original" else folder
    start = make_engine_job(tmp_path / "store", model, [3]).start
    options = _options(replace(start, quantization=quantization), "bfloat16")
    assert (options.quantization, options.rounds_inputs) == (quantization, rounds_inputs)
