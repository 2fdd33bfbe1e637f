"""Which layers of a store a format takes, or why it cannot. Pure."""

from collections.abc import Sequence

from storage.specs import LayerId, StateSpec
from tasks.engine.layers import resolve_layers
from tasks.errors import ExportError
from tasks.trainer_files.base import LayerChoice, Norm, TrainerFormat


def choose_layers(form: TrainerFormat, spec: StateSpec, wanted: str | None = None) -> LayerChoice:
    """Return what a file of a format gets of the layers of a store.

    Args:
        form: the format.
        spec: of the store's states.
        wanted: an expression of `tasks.engine.layers`, in our ids; all captured layers by default.

    Raises:
        ExportError: the store lacks a layer, or the format another number of them, with how to get it.
        LayerError: the expression is malformed or out of range.
    """
    layers = spec.layers if wanted is None else resolve_layers(wanted, spec.num_layers)
    _require_captured(layers, spec)
    if not form.norms:
        return LayerChoice(layers)
    norm = _choose_norm(form, spec)
    ends: set[LayerId] = {"final", spec.num_layers}
    aux = tuple(layer for layer in layers if layer not in ends)
    if not aux or form.num_aux not in (None, len(aux)):
        raise ExportError(_wrong_number(form, spec, aux))
    return LayerChoice(aux, _last(norm, spec), norm)


def _last(norm: Norm, spec: StateSpec) -> LayerId:
    return "final" if norm == "after" else spec.num_layers


def _choose_norm(form: TrainerFormat, spec: StateSpec) -> Norm:
    for norm in form.norms:
        if _last(norm, spec) in spec.layers:
            return norm
    norm = form.norms[0]
    more = ", which cannot be had from the one after it" if norm == "before" else ""
    wanted = _listed((*(layer for layer in spec.layers if layer != "final"), _last(norm, spec)))
    if norm == "before" and "final" in spec.layers:
        wanted += ",final"
    raise ExportError(
        f"{form.name} reads the state {norm} the final norm, layer {_last(norm, spec)}{more}; the store has "
        f"{_listed(spec.layers)}: run aerie extract with --layers {wanted}"
    )


def _require_captured(layers: Sequence[LayerId], spec: StateSpec) -> None:
    lacking = [layer for layer in layers if layer not in spec.layers]
    if lacking:
        raise ExportError(
            f"layer {lacking[0]} is not in the store, which has {_listed(spec.layers)}: choose among these, or run "
            f"aerie extract with --layers {_listed(_union(layers, spec.layers))}"
        )


def _union(some: Sequence[LayerId], others: Sequence[LayerId]) -> list[LayerId]:
    both = {*some, *others}
    found: list[LayerId] = sorted(layer for layer in both if layer != "final")
    return [*found, "final"] if "final" in both else found


def _wrong_number(form: TrainerFormat, spec: StateSpec, aux: Sequence[LayerId]) -> str:
    needed = f"exactly {form.num_aux}" if form.num_aux else "at least one"
    last = _last(form.norms[0], spec)
    return (
        f"{form.name} reads {needed} of the layers before the last, not {len(aux)} ({_listed(aux) or 'none'}); the "
        f"store has {_listed(spec.layers)}: choose with --layers, or run aerie extract with --layers 2,L//2,L-3,{last}"
    )


def _listed(layers: Sequence[LayerId]) -> str:
    return ",".join(map(str, layers))


def require_exact(form: TrainerFormat, spec: StateSpec, *, allow_lossy: bool) -> None:
    """Refuse states that are not what the forward gave, to the last bit, unless they are asked for.

    Raises:
        ExportError: with what is lossy about them.
    """
    if allow_lossy or form.takes_float8:
        return
    if not spec.is_exact:
        kept = f"{spec.mantissa_bits} bits of mantissa" if spec.mantissa_bits else spec.storage_dtype
        raise ExportError(f"the store's states are lossy ({kept}); give --allow-lossy, or extract exact ones")
    if not form.as_stored and spec.dtype.states != "bfloat16":
        raise ExportError(
            f"{form.name} reads bfloat16 and the store's states are {spec.dtype.states}; give --allow-lossy to round "
            "them, or run aerie extract with --dtype bfloat16"
        )
