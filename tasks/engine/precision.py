"""The dtype and the quantization of a forward: chosen, or refused, before anything is loaded."""

from dataclasses import dataclass

from tasks.engine.architectures import ARCHITECTURES
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
    model: ModelInfo, device: str, dtype: str = AUTO, quantization: str = AUTO, split: int = 1
) -> Precision:
    """Resolve `dtype` and `quantization`, each `auto` or a choice, for a model on `cpu` or `cuda`.

    Args:
        model: the model.
        device: `cpu` or `cuda`.
        dtype: `auto` or that of activations.
        quantization: `auto` or what to quantize to as the model is loaded.
        split: parts into which an expert is cut: ranks that share the model, over parts into which experts are dealt.

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
    if model.widest_split is not None and split > model.widest_split:
        raise PrecisionError(
            f"SGLang computes {model.quantization} wrong where a rank's part of an expert is no wider than a group of "
            f"its scales: here it is cut into {split}, at most {model.widest_split} would be right; choose a smaller "
            "tp or a larger ep in devices, or a checkpoint with smaller groups"
        )
    allowed = QUANTIZED_DTYPES if online else model.compute_dtypes
    return Precision(_choose_dtype(model, device, dtype, _on_device(model, device, allowed)), described, online)


def _on_device(model: ModelInfo, device: str, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    row = ARCHITECTURES.get(model.architecture)
    if device == "cpu" or row is None:
        return dtypes
    allowed = tuple(dtype for dtype in dtypes if dtype in row.gpu_dtypes)
    if not allowed:
        raise PrecisionError(
            f"SGLang computes {model.architecture} on a GPU in {', '.join(row.gpu_dtypes)}, and {model.quantization} "
            f"in {', '.join(dtypes)}; give a checkpoint that is quantized otherwise"
        )
    return allowed


def _choose_dtype(model: ModelInfo, device: str, dtype: str, allowed: tuple[str, ...]) -> str:
    if dtype == AUTO and device == "cpu":
        return "float32"  # bf16 is slow on a CPU without AMX, and fp32 there is bit-identical to transformers
    if dtype == AUTO:
        return model.dtype if model.dtype in allowed else allowed[0]
    if dtype not in allowed:
        raise PrecisionError(
            f"dtype {dtype} is not one that SGLang computes this model in on a {'CPU' if device == 'cpu' else 'GPU'} "
            f"({', '.join(allowed)}); leave dtype at {AUTO}"
        )
    return dtype
