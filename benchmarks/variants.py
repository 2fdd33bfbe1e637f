"""The ways in which a model is run: device, dtype, weights, number of GPUs."""

from dataclasses import dataclass
from typing import Literal

from models import QUANTIZED, deals_experts, scheme_of

from tasks.engine.gpus import visible_gpus

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One column of the table.

    Attributes:
        name: how it is asked for and reported.
        device: `cpu` or `cuda`.
        compute_dtype: dtype of the forward; empty for that of the checkpoint.
        tp_size: GPUs, or processes on a CPU, that share the model.
        ep_size: parts into which its experts are dealt among them.
        weights: `own`; `online` quantizes them to FP8 at load; `fp8` and `w4a16` are checkpoints quantized so.
        deterministic: with `--deterministic`: the same bits in any batch.
        alone: run one sequence at a time, as transformers does: the same bits need the same shapes of matrices.
        like: the variant that it should equal but for rounding, and is compared with bit by bit.
    """

    name: str
    device: Device
    compute_dtype: str
    tp_size: int = 1
    ep_size: int = 1
    weights: Literal["own", "online", "fp8", "w4a16"] = "own"
    deterministic: bool = False
    alone: bool = False
    like: str | None = None

    @property
    def is_exact(self) -> bool:
        """Whether it must be that of transformers in float32 but for the order of sums."""
        return self.compute_dtype == "float32" and self.device == "cpu"


_ALL = (
    Variant("cpu-fp32", "cpu", "float32", alone=True),
    Variant("cpu-fp32-tp2", "cpu", "float32", tp_size=2, like="cpu-fp32"),
    Variant("cpu-fp32-deterministic", "cpu", "float32", deterministic=True, like="cpu-fp32"),
    Variant("cpu-bf16", "cpu", "bfloat16"),
    Variant("gpu-bf16", "cuda", "bfloat16"),
    Variant("gpu-bf16-tp2", "cuda", "bfloat16", tp_size=2, like="gpu-bf16"),
    Variant("gpu-bf16-ep2", "cuda", "bfloat16", tp_size=2, ep_size=2, like="gpu-bf16"),
    Variant("gpu-bf16-deterministic", "cuda", "bfloat16", deterministic=True, like="gpu-bf16"),
    Variant("gpu-bf16-tp2-deterministic", "cuda", "bfloat16", 2, deterministic=True, like="gpu-bf16-deterministic"),
    Variant("gpu-fp16", "cuda", "float16"),
    Variant("gpu-fp8-online", "cuda", "bfloat16", weights="online"),
    Variant("gpu-fp8", "cuda", "", weights="fp8"),
    Variant("gpu-w4a16", "cuda", "", weights="w4a16"),
)
VARIANTS = {variant.name: variant for variant in _ALL}
# Their experts, or linear attention, are laid out or named so that what stands beside FP8 (references.py) would not
# round them.
NOT_ONLINE = frozenset({"gpt-oss", "llama4", "llama4-text", "qwen3-next"})


def runnable(model: str) -> list[Variant]:
    """Return the variants of a model of `models.NAMES` that this machine has the devices for."""
    num_gpus = len(visible_gpus())
    here = [variant for variant in _ALL if variant.device == "cpu" or variant.tp_size <= num_gpus]
    return [variant for variant in here if _fits(variant, model)]


def _fits(variant: Variant, model: str) -> bool:
    if model in QUANTIZED:
        return variant.weights == ("fp8" if scheme_of(model).startswith("fp8") else "w4a16")
    if variant.weights == "online":
        return model not in NOT_ONLINE
    return variant.weights == "own" and (variant.ep_size == 1 or deals_experts(model))
