"""Layer expressions (`2,L//2,L-3,final`, `dflash:5`) to canonical layer ids.

An id is an index into transformers' `hidden_states`: 0 is the embeddings, k the residual stream after k blocks, `L`
(the number of blocks) the stream before the final norm. `final` is the stream after the final norm. Names stand for
the sets that trainers use.
"""

import re
from collections.abc import Sequence
from typing import Literal

from tasks.engine.errors import LayerError

LayerId = int | Literal["final"]

DEFAULT_LAYERS = "2,L//2,L-3,final"

# Layers of DFlash's published drafters (Qwen3, Llama-3.1), which have as many layers themselves.
DFLASH_LAYERS = 5

_GRAMMAR = "an integer, L, L-<n>, L//<n>, final, eagle3, dflash or dflash:<n>"
_INTEGER = re.compile(r"[+-]?[0-9]{1,9}")
_FROM_END = re.compile(r"L\s*-\s*([0-9]{1,9})")
_FRACTION = re.compile(r"L\s*//\s*([1-9][0-9]{0,8})")
_DFLASH = re.compile(r"dflash(?::([1-9][0-9]{0,2}))?")
# What a form can refuse by itself: the grammar, without the model's number of blocks.
LAYERS_PATTERN = r"^(\s*(\d+|L|L\s*(-|//)\s*\d+|final|eagle3|dflash(:\d+)?)\s*(,(?!$)|$))+$"


def resolve_layers(expression: str | Sequence[int | str], num_layers: int) -> tuple[LayerId, ...]:
    """Resolve layers for a model of `num_layers` blocks: ascending, `final` last.

    Raises:
        LayerError: a term is not in the grammar, outside 0..num_layers, or names a layer that another term names; a
            set may share layers with other terms.
    """
    named: dict[LayerId, str] = {}
    in_sets: set[LayerId] = set()
    for term in _terms(expression):
        if (layers := _resolve_set(term, num_layers)) is not None:
            in_sets.update(layers)
            continue
        layer = _resolve_term(term, num_layers)
        if layer in named:
            raise LayerError(_twice(named[layer], term, layer, num_layers) + _cure_for_default(expression, num_layers))
        if layer != "final" and not 0 <= layer <= num_layers:
            raise LayerError(_outside(term, layer, num_layers) + _cure_for_default(expression, num_layers))
        named[layer] = term
    found = in_sets | named.keys()
    blocks = sorted(layer for layer in found if layer != "final")
    return (*blocks, "final") if "final" in found else tuple(blocks)


def _resolve_set(term: str, num_layers: int) -> tuple[LayerId, ...] | None:
    """Return the layers of a named set; None where `term` is no name of one."""
    if term == "eagle3":
        return resolve_layers(DEFAULT_LAYERS, num_layers)
    if match := _DFLASH.fullmatch(term):
        return _dflash_layers(int(match[1] or DFLASH_LAYERS), num_layers)
    return None


def _dflash_layers(count: int, num_layers: int) -> tuple[int, ...]:
    """Return the `count` layers that DFlash reads for a drafter of as many layers.

    Its `build_target_layer_ids` (github.com/z-lab/dflash; SGLang's `speculative/dflash_utils.py` has the same) spreads
    them evenly over the outputs of blocks 1 to L - 3, counted from 0, and takes block L // 2 where it needs but one.
    The output of block k is layer k + 1 here.
    """
    if count == 1:
        return (num_layers // 2 + 1,)
    last = num_layers - 3
    layers = tuple(round(1 + place * (last - 1) / (count - 1)) + 1 for place in range(count))
    if last < 1 or len(set(layers)) < count:
        raise LayerError(
            f"dflash:{count} needs {count} different layers among 2..{num_layers - 2}, which a model of {num_layers} "
            "blocks does not have; choose fewer, or name layers one by one"
        )
    return layers


def _terms(expression: str | Sequence[int | str]) -> list[str]:
    parts: Sequence[int | str] = expression.split(",") if isinstance(expression, str) else expression
    terms = [str(part).strip() for part in parts]
    if not any(terms):
        raise LayerError(f"no layers given; write a comma-separated list such as {DEFAULT_LAYERS}")
    return terms


def _resolve_term(term: str, num_layers: int) -> LayerId:
    if term == "final":
        return "final"
    if term == "L":
        return num_layers
    if _INTEGER.fullmatch(term):
        return int(term)
    if match := _FROM_END.fullmatch(term):
        return num_layers - int(match[1])
    if match := _FRACTION.fullmatch(term):
        return num_layers // int(match[1])
    raise LayerError(f"layer {term!r} is not {_GRAMMAR}; write a comma-separated list such as {DEFAULT_LAYERS}")


def _twice(first: str, second: str, layer: LayerId, num_layers: int) -> str:
    same = f"{first!r} is given twice" if first == second else f"{first!r} and {second!r} are both layer {layer}"
    return f"layers: {same} (the model has L = {num_layers} blocks, ids 0..{num_layers}); keep one"


def _outside(term: str, layer: int, num_layers: int) -> str:
    value = term if term == str(layer) else f"{term} = {layer}"
    return (
        f"layer {value} is outside 0..{num_layers} (the model has L = {num_layers} blocks); "
        "write L-<n> to count from the end, or final for the state after the last norm"
    )


def _cure_for_default(expression: str | Sequence[int | str], num_layers: int) -> str:
    """Say that the default itself does not fit: it was not this caller who chose these layers."""
    if expression != DEFAULT_LAYERS:
        return ""
    return f". The default {DEFAULT_LAYERS} needs 3 blocks, or 7 and more; choose layers, such as 0,{num_layers},final"
