"""One sample of a store: where its rows lie, loose or packed, and its states and token ids as numpy arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from storage.codecs import TOKENS_PER_CHUNK, chunk_count, decode_chunk
from storage.columns import Column
from storage.errors import SpecError
from storage.files import missing_is_torn
from storage.float8 import split
from storage.scratch import Scratch, allocate
from storage.specs import LayerId, StateSpec
from storage.state_arrays import EncodedChunk, StateArray
from storage.storage_dtypes import FLOAT8

T = TypeVar("T")


class RoundingError(NamedTuple):
    """Relative errors of lossy states: Euclidean norm of what rounding changed in a state, over that of the state.

    Attributes:
        largest: of all tokens and layers.
        mean: over all tokens and layers.
    """

    largest: float
    mean: float


class Float8States(NamedTuple):
    """States as they are stored in float8; each is its values times its scale.

    Attributes:
        values: `ml_dtypes.float8_e4m3fn`[rows, layers, hidden_size].
        scales: float32[rows, layers].
    """

    values: npt.NDArray[Any]
    scales: npt.NDArray[np.float32]


@dataclass(frozen=True)
class StoredRows:
    """The rows of one sample in a group on disk.

    Attributes:
        states: the group's `hidden_states`.
        ids: the group's `input_ids`.
        row_start: first row of the sample in both; a multiple of `TOKENS_PER_CHUNK`.
        num_tokens: rows of the sample.
        checksum: crc32c over the checksums of its inner chunks in C order, as recorded beside them; it ties them to the
            sample.
        error: what rounding did to the states, as recorded beside them; None where the spec is exact.
    """

    states: StateArray
    ids: Column
    row_start: int
    num_tokens: int
    checksum: int
    error: RoundingError | None = None

    @property
    def chunks(self) -> range:
        """The token-chunks of the sample, counted from the array's first row."""
        first = self.row_start // TOKENS_PER_CHUNK
        return range(first, first + chunk_count(self.num_tokens))

    def encoded(self) -> Iterator[EncodedChunk]:
        """Read all inner chunks of the sample in C order."""
        return self.states.read(self.chunks, range(self.states.spec.num_captured))

    def input_ids(self) -> npt.NDArray[np.int32]:
        """Return int32[num_tokens]."""
        return self.ids[self.row_start : self.row_start + self.num_tokens]

    def hidden_states(self, slots: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows start..stop of the layers at `slots`, as bits of the states."""
        spec = self.states.spec
        return self._read(slots, start, (stop - start, spec.hidden_size), spec.dtype.bits)

    def as_stored(self, slots: Sequence[int], start: int, stop: int) -> npt.NDArray[Any]:
        """Return the same rows as they are on disk: [rows, len(slots), stored_width]."""
        spec = self.states.spec
        return self._read(slots, start, (stop - start, spec.stored_width), spec.stored_dtype)

    def _read(self, slots: Sequence[int], start: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        if shape[0]:
            self.states.require(self.chunks[start // TOKENS_PER_CHUNK : chunk_count(start + shape[0])])
        out = allocate((len(slots), *shape), dtype)
        self.read_into(out, slots, start, Scratch())
        return out.transpose(1, 0, 2)

    def read_into(self, out: npt.NDArray[Any], slots: Sequence[int], start: int, scratch: Scratch) -> None:
        """Read rows from `start` of the layers at `slots` into `out` [len(slots), rows, hidden_size], each contiguous.

        Layers come first, since an inner chunk has one: where its rows follow each other it is decoded into its place,
        which saves a copy. Where rows are encoded, an `out` of the dtype and width on disk gets the rows as they are
        there.
        """
        stop = start + out.shape[1]
        if not out.size:
            return
        spec = self.states.spec
        first_chunk = start // TOKENS_PER_CHUNK
        chunks = self.chunks[first_chunk : chunk_count(stop)]
        codec = spec.dtype.codec
        is_raw = codec is None or out.dtype == spec.stored_dtype
        place_rows = np.copyto if is_raw or codec is None else codec.decode
        layers = {slot: [out[i] for i, wanted in enumerate(slots) if wanted == slot] for slot in sorted(set(slots))}
        for chunk, slot, data in self.states.read(chunks, list(layers), scratch):
            first = (first_chunk + chunk) * TOKENS_PER_CHUNK
            low, high = max(start, first), min(stop, first + TOKENS_PER_CHUNK)
            places = [layer[low - start : high - start] for layer in layers[slot]]
            is_whole = is_raw and high - low == TOKENS_PER_CHUNK and places[-1].flags.c_contiguous
            target = places.pop() if is_whole else scratch.chunk(spec)
            what = f"chunk {first_chunk + chunk}, layer {spec.layers[slot]}"
            decode_chunk(data, spec.stored_dtype, spec.stored_width, what, target, high - first)
            for place in places:
                place_rows(place, target[low - first : high - first])


class Sample:
    """One sample of a store.

    Args:
        sample_hash: its name.
        spec: what its states depend on.
        locate: finds its rows; called again, with where they were, when a file of them has gone from there.

    Attributes:
        sample_hash: its name.
        stored_rows: where its rows lie, as last found.
    """

    def __init__(self, sample_hash: str, spec: StateSpec, locate: Callable[[StoredRows | None], StoredRows]) -> None:
        self.sample_hash = sample_hash
        self._spec = spec
        self._locate = locate
        self.stored_rows = locate(None)

    @property
    def num_tokens(self) -> int:
        """Number of tokens, the first axis of both arrays."""
        return self.stored_rows.num_tokens

    @property
    def rounding_error(self) -> RoundingError | None:
        """How far its states are from what was computed; None where the spec is exact."""
        return self.stored_rows.error

    @property
    def input_ids(self) -> npt.NDArray[np.int32]:
        """Token ids, int32[num_tokens].

        Raises:
            CorruptObjectError: the stored bytes are damaged.
        """
        return self._read(StoredRows.input_ids)

    def hidden_states(self, layers: Sequence[LayerId] | None = None, rows: slice | None = None) -> npt.NDArray[Any]:
        """Return states [rows, len(layers), hidden_size] in the storage dtype (bfloat16 as `ml_dtypes.bfloat16`).

        Those stored in float8 are multiplied by their scales, in float32, and rounded to bfloat16.

        In memory each layer is contiguous, [rows, hidden_size], and the layers follow each other.

        Args:
            layers: captured layers, in the order wanted; all by default.
            rows: a slice of step 1 over the tokens; all by default. Only the chunks it touches are decoded.

        Raises:
            SpecError: a layer was not captured.
            ValueError: the slice has another step.
            CorruptObjectError: the stored bytes are damaged.
        """
        slots, wanted = self._spec.slots_of(layers), self.row_range(rows)
        values = self._read(lambda found: found.hidden_states(slots, wanted.start, wanted.stop))
        return self._spec.view_logical(values)

    def float8_states(self, layers: Sequence[LayerId] | None = None, rows: slice | None = None) -> Float8States:
        """Return what is stored in float8, as it is on disk; `layers` and `rows` are those of `hidden_states`.

        Raises:
            SpecError: states of this spec are stored otherwise, or a layer was not captured.
            ValueError, CorruptObjectError: as for `hidden_states`.
        """
        if self._spec.storage_dtype != FLOAT8:
            raise SpecError(f"states are stored in {self._spec.storage_dtype}, not in float8; use hidden_states")
        slots, wanted = self._spec.slots_of(layers), self.row_range(rows)
        return Float8States(*split(self._read(lambda found: found.as_stored(slots, wanted.start, wanted.stop))))

    def row_range(self, rows: slice | None) -> range:
        """Return the tokens that a slice of step 1 means.

        Raises:
            ValueError: the slice has another step.
            TypeError: it is no slice.
        """
        if not isinstance(rows, slice | None):
            raise TypeError(f"rows are {rows!r}; give a slice, such as slice(0, 3)")
        start, stop, step = (rows or slice(None)).indices(self.num_tokens)
        if step != 1:
            raise ValueError(f"rows have step {step}, only 1 is read; take the step from the result")
        return range(start, max(start, stop))

    def read_into(
        self, out: npt.NDArray[Any], slots: Sequence[int], start: int, scratch: Scratch | None = None
    ) -> None:
        """Read as `StoredRows.read_into`, wherever the rows are by now.

        Raises:
            CorruptObjectError: the stored bytes are damaged.
        """
        self._read(lambda found: found.read_into(out, slots, start, scratch or Scratch()))

    def _read(self, read: Callable[[StoredRows], T]) -> T:
        try:
            return read(self.stored_rows)
        except FileNotFoundError:
            self.stored_rows = self._locate(self.stored_rows)
        with missing_is_torn(f"sample {self.sample_hash}"):
            return read(self.stored_rows)
