"""How many ranks can share a model: each gets whole attention heads and whole experts, as many as the next. Pure."""

from typing import Literal

from tasks.engine.architectures import get_architecture
from tasks.engine.errors import DeviceError
from tasks.engine.models import ModelInfo


def check_ranks(model: ModelInfo, kind: Literal["cpu", "cuda"], tp_size: int, ep_size: int = 1) -> None:
    """Refuse a number of ranks among which SGLang cannot deal out the heads, or the experts, of a model.

    Raises:
        DeviceError: with the numbers of heads or experts, and of ranks that could share them.
        UnsupportedArchitectureError: the model is not in the table.
    """
    _check_heads(model, kind, tp_size)
    if ep_size > 1:
        _check_experts(model, ep_size)


def _check_heads(model: ModelInfo, kind: Literal["cpu", "cuda"], tp_size: int) -> None:
    heads, key_heads = model.num_heads, model.num_key_heads
    if heads is None or key_heads is None or _can_share(heads, key_heads, tp_size):
        return
    if kind == "cpu" and get_architecture(model.architecture).pads_on_cpu:
        return
    others = [f":tp{number}" for number in range(2, heads + 1) if _can_share(heads, key_heads, number)]
    raise DeviceError(
        f"devices: {tp_size} ranks cannot share {heads} attention heads, {key_heads} of them with keys and values of "
        f"their own; choose {', '.join(others)} or an engine for each device, without :tp"
    )


def _check_experts(model: ModelInfo, ep_size: int) -> None:
    if not model.has_experts:
        raise DeviceError(
            f"devices: :ep{ep_size} deals out experts, and {model.architecture} here has none; leave it out"
        )
    if model.quantization is None and not get_architecture(model.architecture).deals_experts:
        raise DeviceError(
            f"devices: SGLang 0.5.17 cannot deal out the experts of {model.architecture}; leave :ep{ep_size} out"
        )
    if model.num_experts % ep_size:
        others = [f":ep{number}" for number in range(2, model.num_experts + 1) if model.num_experts % number == 0]
        raise DeviceError(
            f"devices: {model.num_experts} experts cannot be dealt out in {ep_size} equal parts; "
            f"choose {', '.join(others)} or leave :ep{ep_size} out"
        )


def _can_share(heads: int, key_heads: int, ranks: int) -> bool:
    """Say what every attention of SGLang 0.5.17 asserts: heads are cut evenly, those of keys cut or copied evenly."""
    return heads % ranks == 0 and (key_heads % ranks == 0 or ranks % key_heads == 0)
