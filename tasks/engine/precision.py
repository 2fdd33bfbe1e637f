"""The dtype and the quantization of a forward: chosen, or refused, before anything is loaded."""

from dataclasses import dataclass

from tasks.engine.errors import PrecisionError
from tasks.engine.models import ModelInfo
from tasks.engine.quantizations import QUANTIZED_DTYPES

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Precision:
    """What a forward computes in.

    Attributes:
        compute_dtype: dtype of activations and of what is not quantized.
        quantization: what the weights are quantized to, in one line, or None; it names states.
        online: what SGLang is told to quantize to as it loads, or None.
    """

    compute_dtype: str
    quantization: str | None
    online: str | None


def choose_precision(
    model: ModelInfo, device: str, dtype: str = AUTO, quantization: str = AUTO, *, deterministic: bool = False
) -> Precision:
    """Resolve `dtype` and `quantization`, each `auto` or a choice, for a model on `cpu` or `cuda`.

    Raises:
        PrecisionError: SGLang cannot run that combination.
    """
    online = None if quantization == AUTO else quantization
    if online and model.quantization:
        raise PrecisionError(
            f"the model is quantized already ({model.quantization}); leave quantization at {AUTO}, or give a model "
            f"that is not, to quantize to {online}"
        )
    described = f"online {online}" if online else model.quantization
    if device == "cpu" and described:
        raise PrecisionError(f"SGLang cannot run {described} on a CPU; choose a GPU with devices")
    allowed = QUANTIZED_DTYPES if online else model.compute_dtypes
    chosen = _choose_dtype(model, device, dtype, allowed)
    if deterministic and device == "cuda" and chosen == "float32":
        # Its Triton kernels call tl.dot without input_precision, which is TF32.
        raise PrecisionError(
            "SGLang's batch-invariant kernels multiply float32 with 10 bits of mantissa; choose dtype bfloat16 or "
            "float16, or leave deterministic off"
        )
    return Precision(chosen, described, online)


def _choose_dtype(model: ModelInfo, device: str, dtype: str, allowed: tuple[str, ...]) -> str:
    if dtype == AUTO and device == "cpu":
        return "float32"  # bf16 is slow on a CPU without AMX, and fp32 there is bit-identical to transformers
    if dtype == AUTO:
        return model.dtype if model.dtype in allowed else allowed[0]
    if dtype not in allowed:
        raise PrecisionError(
            f"dtype {dtype} is not one that SGLang computes this model in ({', '.join(allowed)}); leave dtype at {AUTO}"
        )
    return dtype
