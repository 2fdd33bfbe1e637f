"""What imported states and tokens are of: as their owner says, since the files do not."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safetensors import safe_open

from storage.paths import StorePath
from storage.specs import LayerId, StateSpec
from tasks.engine.layers import resolve_layers
from tasks.engine.models import ModelInfo
from tasks.errors import ImportFilesError
from tasks.trainer_files.base import Norm
from tasks.trainer_files.sources import Source, SourceFile

# Who counts: we, the stream after k blocks; SpecForge, the output of block k.
Convention = Literal["aerie", "specforge"]
EAGLE3_LAYERS = "2,L//2,L-3"
# What made the states of files is not known.
ENGINE, UNKNOWN = "imported", "unknown"


@dataclass(frozen=True)
class ImportRequest:
    """What a user says of a folder of files.

    Attributes:
        folder: that of the files.
        source: name of a row of `SOURCES`.
        store: where they go; made if it is not there.
        model: the model that they are of, as for `aerie extract`.
        layers: of their states, an expression of `tasks.engine.layers`; None: those that the files name, or EAGLE-3's.
        convention: in whose ids.
        norm: whether the last state of SpecForge's files is after the final norm, as its trainer takes it, or before.
        storage_dtype: as for `StateSpec`; None: that of the files.
        mantissa_bits: as for `StateSpec`.
    """

    folder: Path
    source: str
    store: StorePath
    model: Path
    layers: str | None = None
    convention: Convention = "aerie"
    norm: Norm = "after"
    storage_dtype: str | None = None
    mantissa_bits: int | None = None


def make_import_spec(
    request: ImportRequest, source: Source, first: SourceFile, model: ModelInfo, fingerprint: str
) -> StateSpec:
    """Return the spec of the states of a folder, of which `first` is a file.

    Raises:
        ImportFilesError: the files have another number of layers than was said, or it was not said which.
        LayerError: the expression is malformed or out of range.
        SpecError: dtype or bits of mantissa are none of a spec.
    """
    layers = _read_layers(request, source, first, model.num_layers)
    if len(layers) != first.num_layers:
        raise ImportFilesError(
            f"{first.path} has states of {first.num_layers} layers, --layers names {len(layers)} "
            f"({','.join(map(str, layers))}); name those of the files"
        )
    spec = StateSpec(
        model_fingerprint=fingerprint,
        architecture=model.architecture,
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        layers=layers,
        compute_dtype=UNKNOWN,
        storage_dtype=request.storage_dtype or first.dtype,
        quantization=model.quantization,
        engine=ENGINE,
        engine_version=source.name,
        mantissa_bits=request.mantissa_bits,
    )
    if spec.dtype.states != first.dtype:
        raise ImportFilesError(
            f"{first.path} has states of {first.dtype}, which cannot be stored as {spec.storage_dtype}; leave "
            "--storage-dtype out"
        )
    return spec


def _read_layers(request: ImportRequest, source: Source, first: SourceFile, num_layers: int) -> tuple[LayerId, ...]:
    named = request.layers or (EAGLE3_LAYERS if source.has_last else _named_in(first.path))
    found = resolve_layers(named, num_layers)
    if request.convention == "specforge" and request.layers is not None:
        found = tuple(layer if layer == "final" else layer + 1 for layer in found)
    if not source.has_last:
        return found
    return (*found, "final" if request.norm == "after" else num_layers)


def _named_in(path: Path) -> str:
    """Return the layers that a file of our own export names."""
    with safe_open(path, framework="pt") as file:
        named = (file.metadata() or {}).get("layers")
    if named is None:
        raise ImportFilesError(f"{path} does not say which layers its states are of; give --layers")
    try:
        layers = json.loads(named)
    except (ValueError, RecursionError):
        layers = None
    if not isinstance(layers, list):
        raise ImportFilesError(f"{path} names its layers as {named!r:.100}, no list; give --layers")
    return ",".join(map(str, layers))
