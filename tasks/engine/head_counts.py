"""How many ranks can share a model: each gets whole attention heads, as many as the next. Pure."""

from typing import Literal

from tasks.engine.architectures import get_architecture
from tasks.engine.errors import DeviceError
from tasks.engine.models import ModelInfo


def check_ranks(model: ModelInfo, kind: Literal["cpu", "cuda"], tp_size: int) -> None:
    """Refuse a number of ranks among which SGLang cannot deal out the heads of a model.

    Raises:
        DeviceError: with the numbers of heads, and of ranks that could share them.
        UnsupportedArchitectureError: the model is not in the table.
    """
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


def _can_share(heads: int, key_heads: int, ranks: int) -> bool:
    """Say what every attention of SGLang 0.5.17 asserts: heads are cut evenly, those of keys cut or copied evenly."""
    return heads % ranks == 0 and (key_heads % ranks == 0 or ranks % key_heads == 0)
