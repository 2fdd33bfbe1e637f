"""What states and tokens depend on: `StateSpec`, `TokensSpec`, their JSON and their digests."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal, TypeGuard

import ml_dtypes
import numpy as np
import numpy.typing as npt

from storage.digests import canonical_json, sha256_hex
from storage.errors import SpecError
from storage.limits import MAX_HIDDEN_SIZE, MAX_LAYERS, is_number
from storage.storage_dtypes import STORAGE_DTYPES, StorageDtype

LayerId = int | Literal["final"]
Scalar = str | int | float | bool
# Characters of a bad value that an error shows.
_SHOWN = 500


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _require(fits: bool, name: str, value: object, rule: str) -> None:
    if not fits:
        raise SpecError(f"spec field {name} is {repr(value)[:_SHOWN]}; it must be {rule}")


def _require_canonical_layers(layers: tuple[LayerId, ...], num_layers: int) -> None:
    numbers = layers[:-1] if layers[-1:] == ("final",) else layers
    in_range = all(isinstance(k, int) and not isinstance(k, bool) and 0 <= k <= num_layers for k in numbers)
    ascending = in_range and all(a < b for a, b in pairwise(int(k) for k in numbers))
    rule = f"ascending ids in 0..{num_layers} without repeats, then 'final' if it is captured"
    _require(isinstance(layers, tuple) and bool(layers) and ascending, "layers", layers, rule)


@dataclass(frozen=True)
class StateSpec:
    """All that a hidden state depends on; its digest names the states in the store.

    Attributes:
        model_fingerprint: digest of weights and config.
        architecture: Hugging Face architecture, e.g. `LlamaForCausalLM`.
        num_layers: blocks of the model.
        hidden_size: width of the residual stream.
        layers: transformers `hidden_states` indexes, ascending: 0 = embeddings, k = the stream after k blocks,
            `num_layers` = before the final norm; then `"final"` = after it.
        compute_dtype: dtype of the forward.
        storage_dtype: `bfloat16`, `float16` or `float32`; or `float8_e4m3fn` with a scale for each token and layer, a
            lossy one of bfloat16 states.
        quantization: what the weights are quantized to, if to anything.
        engine: name of the engine.
        engine_version: its exact version.
        numerics: anything else that changes values.
        mantissa_bits: bits of each value's mantissa that are stored, less than the storage dtype has; None is all.

    Raises:
        SpecError: a field is not valid.
    """

    model_fingerprint: str
    architecture: str
    num_layers: int
    hidden_size: int
    layers: tuple[LayerId, ...]
    compute_dtype: str
    storage_dtype: str
    quantization: str | None
    engine: str
    engine_version: str
    numerics: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    mantissa_bits: int | None = None

    def __post_init__(self) -> None:
        for name in ("model_fingerprint", "architecture", "compute_dtype", "engine", "engine_version"):
            _require(_is_text(getattr(self, name)), name, getattr(self, name), "a non-empty string")
        for name, most in (("num_layers", MAX_LAYERS), ("hidden_size", MAX_HIDDEN_SIZE)):
            _require(is_number(getattr(self, name), most, 1), name, getattr(self, name), f"an integer in 1..{most}")
        _require(
            _is_text(self.storage_dtype) and self.storage_dtype in STORAGE_DTYPES,
            "storage_dtype",
            self.storage_dtype,
            f"one of {list(STORAGE_DTYPES)}",
        )
        _require(
            self.quantization is None or _is_text(self.quantization), "quantization", self.quantization, "text or None"
        )
        most = self.dtype.mantissa_bits - 1
        is_kept = self.mantissa_bits is None or (_is_count(self.mantissa_bits) and self.mantissa_bits <= most)
        rule = (
            f"in 1..{most} for {self.storage_dtype}, or None for all" if most > 0 else f"None for {self.storage_dtype}"
        )
        _require(is_kept, "mantissa_bits", self.mantissa_bits, rule)
        _require_canonical_layers(self.layers, self.num_layers)
        _require_scalars("numerics", self.numerics)

    @property
    def num_captured(self) -> int:
        """Number of captured layers, the middle axis of `hidden_states`."""
        return len(self.layers)

    @property
    def is_exact(self) -> bool:
        """Whether what is stored is what the forward gave in the dtype of the states, to the last bit."""
        return self.mantissa_bits is None and self.dtype.codec is None

    @property
    def is_scaled(self) -> bool:
        """Whether a row on disk is numbers, and the scale by which a reader multiplies."""
        return self.dtype.scale_bytes > 0

    @property
    def dtype(self) -> StorageDtype:
        """What the storage dtype is in memory and on disk."""
        return STORAGE_DTYPES[self.storage_dtype]

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        """The numpy dtype on disk: uint16 for bfloat16, uint8 for float8."""
        return self.dtype.stored

    @property
    def stored_width(self) -> int:
        """Elements of one state on disk, its scale included if it has one."""
        return self.hidden_size + self.dtype.scale_bytes // self.stored_dtype.itemsize

    @property
    def bytes_per_token(self) -> int:
        """Raw bytes of one token's states as they are given and read, before compression."""
        return self.num_captured * self.hidden_size * self.dtype.bits.itemsize

    def slots_of(self, layers: Sequence[LayerId] | None) -> list[int]:
        """Return the positions of captured layers on the middle axis; of all by default.

        Raises:
            SpecError: a layer was not captured, or the layers are no sequence.
        """
        if isinstance(layers, str | int):
            raise SpecError(f"layers are {layers!r}; give a list, such as [{layers!r}]")
        lacking = [layer for layer in layers or () if layer not in self.layers]
        if lacking:
            raise SpecError(f"layer {lacking[0]!r} was not captured; the store has {list(self.layers)}")
        return [self.layers.index(layer) for layer in (self.layers if layers is None else layers)]

    def view_logical(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return bits of states, such as the uint16 of bfloat16, as values, without a copy."""
        return values.view(ml_dtypes.bfloat16) if self.dtype.states == "bfloat16" else values

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values; `from_json` takes it back."""
        # Only specs with fewer of them name mantissa_bits: others keep the digests that they had before there were any,
        # and a reader that does not know the key refuses the spec.
        names = [f.name for f in fields(self) if f.name != "mantissa_bits" or self.mantissa_bits is not None]
        return {
            **{name: getattr(self, name) for name in names},
            "layers": list(self.layers),
            "numerics": dict(self.numerics),
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "StateSpec":
        """Read what `to_json` returned.

        Raises:
            SpecError: a key is unknown or missing, or a value is not valid.
        """
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(document) - known | (known - {"mantissa_bits"}) - set(document))
        _require(not unknown, "names", sorted(document), f"exactly those of StateSpec; unknown or missing: {unknown}")
        if "mantissa_bits" in document:
            _require(document["mantissa_bits"] is not None, "mantissa_bits", None, "left out where all are stored")
        _require(isinstance(document["layers"], list), "layers", document["layers"], "a list")
        return cls(**{**document, "layers": tuple(document["layers"])})

    def digest(self) -> str:
        """Return the spec digest: sha256 of the canonical JSON of `to_json()`."""
        return sha256_hex(canonical_json(self.to_json()))


def _require_scalars(name: str, values: Mapping[str, Any]) -> None:
    fits = isinstance(values, Mapping) and all(
        isinstance(k, str) and isinstance(v, Scalar | None) for k, v in values.items()
    )
    _require(fits, name, values, "a mapping of strings to scalars")
    canonical_json(dict(values))


@dataclass(frozen=True)
class TokensSpec:
    """All that a tokens artifact depends on; its digest names the artifact.

    Attributes:
        data: content digests of the data files, in order.
        tokenizer: digest of the tokenizer.
        chat_template: digest of the chat template.
        options: what else the caller chose, e.g. the length limit.
        code_version: raised when the tokenization code changes its output.

    Raises:
        SpecError: a field is not valid.
    """

    data: tuple[str, ...]
    tokenizer: str
    chat_template: str
    options: Mapping[str, Scalar | None] = field(default_factory=dict, hash=False)
    code_version: int = 1

    def __post_init__(self) -> None:
        is_list_of_text = isinstance(self.data, tuple) and bool(self.data) and all(_is_text(item) for item in self.data)
        _require(is_list_of_text, "data", self.data, "a non-empty tuple of digests")
        _require(_is_text(self.tokenizer), "tokenizer", self.tokenizer, "a non-empty string")
        _require(_is_text(self.chat_template), "chat_template", self.chat_template, "a non-empty string")
        _require(_is_count(self.code_version), "code_version", self.code_version, "an integer of at least 1")
        _require_scalars("options", self.options)

    def to_json(self) -> dict[str, Any]:
        """Return the spec as JSON values."""
        return {**asdict(self), "data": list(self.data), "options": dict(self.options)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "TokensSpec":
        """Read what `to_json` returned.

        Raises:
            SpecError: a key is unknown or missing, or a value is not valid.
        """
        is_whole = isinstance(document, Mapping) and set(document) == {f.name for f in fields(cls)}
        _require(is_whole, "names", document, "exactly those of TokensSpec")
        _require(isinstance(document["data"], list), "data", document["data"], "a list")
        return cls(**{**document, "data": tuple(document["data"])})

    def digest(self) -> str:
        """Return the tokens digest: sha256 of the canonical JSON of `to_json()`."""
        return sha256_hex(canonical_json(self.to_json()))


def bits_of(values: npt.NDArray[Any], spec: StateSpec) -> npt.NDArray[Any]:
    """Return `values` as the bits of states without converting: bfloat16 becomes its uint16 bits.

    Raises:
        SpecError: the dtype is not that of the spec's states.
    """
    if values.dtype == spec.dtype.bits:
        return values
    rule = f"that of {spec.dtype.states} states; these are {values.dtype}"
    _require(values.dtype.name == spec.dtype.states, "storage_dtype", spec.storage_dtype, rule)
    return values.view(spec.dtype.bits)
