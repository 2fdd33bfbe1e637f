"""Whether a checkpoint filled a model: SGLang's loaders skip weights that they do not know with a warning, or none.

Parameters are filled with NaN before the weights are read; what is NaN afterwards was not filled. And where nothing is
quantized or shared out among ranks, a block must hold as many numbers as the checkpoint gives for it: the rest is
skipped. Of quantized layers FP8 weights are checked, and that each has scales; others are padded, or start at a default
that may stay.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch

from tasks.engine.errors import ModelLoadError

_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_FP8 = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_FP8_NAN = 0x7F  # in both
# Most elements looked at together; bounds what the check needs on the device.
_SLICE_ELEMENTS = 1 << 26
# The index of a block in a weight's name; not of blocks of another part of the model.
_BLOCK = re.compile(r"(?:^|\.)layers\.(\d+)\.")
# Of a quantized layer, or of the experts of one: what a checkpoint always has, unlike scales of its inputs.
_SCALES = re.compile(r"(?:^|_)(?:weight_scale|weight_scale_inv|scales)$")
_ELSEWHERE = re.compile(r"vision|visual|audio|projector|\bmtp\b|rotary_emb")
_NAMED = 3


class WeightCheck:
    """Watches one model being loaded: `poison` before, `watch` around the weights, `check` after.

    Args:
        body: the part whose parameters must all be filled: the language model with its head.
        blocks: its decoder blocks.
        is_whole: nothing is quantized, and this process holds the whole model.
        has_scales: the checkpoint is quantized, and so must have the scales of its quantized layers.
    """

    def __init__(
        self, body: torch.nn.Module, blocks: Sequence[torch.nn.Module], *, is_whole: bool, has_scales: bool = False
    ) -> None:
        self._parameters = dict(_checked_parameters(body))
        self._scales = dict(_scales(body)) if has_scales else {}
        self._defaults: dict[str, torch.Tensor] = {}
        self._blocks = blocks if is_whole else ()
        self._given: Counter[int] = Counter()

    def poison(self) -> None:
        """Fill what must be loaded with NaN."""
        for parameter in self._parameters.values():
            if parameter.dtype in _FP8:
                parameter.data.view(torch.uint8).fill_(_FP8_NAN)
            else:
                parameter.data.fill_(torch.nan)
        for name, parameter in self._scales.items():
            self._defaults[name] = parameter.data.flatten()[:1].clone()
            parameter.data.fill_(torch.nan)

    def watch(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        """Hand weights through and count them."""
        for name, weight in weights:
            if (match := _BLOCK.search(name)) and not _ELSEWHERE.search(name):
                self._given[int(match[1])] += weight.numel()
            yield name, weight

    def check(self) -> None:
        """Raise if a parameter was not filled, or weights of a block were skipped.

        Raises:
            ModelLoadError: with the names of some.
        """
        self._check_filled()
        self._check_none_skipped()
        for name, parameter in self._scales.items():  # a part may be left: of layers that the checkpoint has joined
            parameter.data.copy_(torch.where(parameter.data.isnan(), self._defaults[name], parameter.data))

    def _check_filled(self) -> None:
        unfilled = [name for name, parameter in self._parameters.items() if _has_nan(parameter.data)]
        unfilled += [name for name, parameter in self._scales.items() if bool(parameter.data.isnan().all())]
        if not unfilled:
            return
        more = f" and {len(unfilled) - _NAMED} more" if len(unfilled) > _NAMED else ""
        raise ModelLoadError(
            f"{len(unfilled)} of {len(self._parameters) + len(self._scales)} parameters were not filled by the "
            f"checkpoint, or have NaN there: {', '.join(unfilled[:_NAMED])}{more}; the checkpoint is not complete, or "
            "names weights otherwise than SGLang does"
        )

    def _check_none_skipped(self) -> None:
        for index, block in enumerate(self._blocks):
            held = sum(parameter.numel() for parameter in block.parameters())
            if self._given[index] > held:
                raise ModelLoadError(
                    f"the checkpoint has {self._given[index]} numbers for layer {index}, SGLang's model has room for "
                    f"{held}: it skipped some; this checkpoint is of another model than its config.json says"
                )


def _checked_parameters(body: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    for path, module in body.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dtype in (_FP8 if _is_quantized(module) else _FLOATS | _FP8) and not parameter.is_meta:
                yield f"{path}.{name}".removeprefix("."), parameter


def _scales(body: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    for path, module in body.named_modules():
        for name, parameter in module.named_parameters(recurse=False) if _is_quantized(module) else ():
            if _SCALES.search(name) and parameter.dtype in _FLOATS and parameter.numel():
                yield f"{path}.{name}".removeprefix("."), parameter


def _is_quantized(module: torch.nn.Module) -> bool:
    method = getattr(module, "quant_method", None)
    return method is not None and not type(method).__name__.startswith("Unquantized")


def _has_nan(values: torch.Tensor) -> bool:
    rows = values.reshape(-1) if values.dim() == 0 else values
    step = max(1, _SLICE_ELEMENTS * len(rows) // max(1, rows.numel()))
    return any(bool(_is_nan(part).any()) for part in torch.split(rows, step))


def _is_nan(values: torch.Tensor) -> torch.Tensor:
    return values.float().isnan() if values.dtype in _FP8 else values.isnan()
