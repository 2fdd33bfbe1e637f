"""One sample of a store: where its rows lie, loose or packed, and its states and token ids as numpy arrays."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np
import numpy.typing as npt

from storage.codecs import TOKENS_PER_CHUNK, chunk_count, decode_chunk
from storage.columns import Column, chunk_key
from storage.errors import SpecError, TornObjectError
from storage.files import missing_is_torn
from storage.shards import MISSING, decode_index, index_size
from storage.specs import LayerId, StateSpec

T = TypeVar("T")


class EncodedChunk(NamedTuple):
    """One encoded inner chunk: number of its token-chunk within the sample, slot of its layer, bytes."""

    chunk: int
    slot: int
    data: bytes


class StateArray:
    """A `hidden_states` array on disk, read by encoded inner chunk.

    Args:
        path: the array's folder.
        spec: gives the number of layers and the hidden size.
        shard_rows: rows of a shard, a multiple of `TOKENS_PER_CHUNK`.
    """

    def __init__(self, path: Path, spec: StateSpec, shard_rows: int) -> None:
        self.spec = spec
        self._path = path
        self._chunks_per_shard = shard_rows // TOKENS_PER_CHUNK
        self._indexes: dict[int, npt.NDArray[Any]] = {}

    def read(self, chunks: range, slots: Sequence[int]) -> Iterator[EncodedChunk]:
        """Read inner chunks in C order.

        Args:
            chunks: token-chunks, counted from the array's first row; in the result they count from `chunks.start`.
            slots: layers, by their position in the array.

        Raises:
            FileNotFoundError: a shard is missing.
            CorruptObjectError: a chunk is missing or lies outside its shard, or the shard's index is damaged.
        """
        for shard in range(chunks.start // self._chunks_per_shard, -(-chunks.stop // self._chunks_per_shard)):
            first = shard * self._chunks_per_shard
            path = self.shard_path(shard)
            with path.open("rb") as file:
                index = self._index(shard, file.fileno(), path)
                for chunk in range(max(chunks.start, first), min(chunks.stop, first + self._chunks_per_shard)):
                    for slot in slots:
                        entry = index[(chunk - first) * self.spec.num_captured + slot]
                        yield EncodedChunk(chunk - chunks.start, slot, _read_entry(file.fileno(), entry, path))

    def shard_path(self, shard: int) -> Path:
        """Return the file of a shard."""
        return self._path / chunk_key(shard, 3)

    def _index(self, shard: int, descriptor: int, path: Path) -> npt.NDArray[Any]:
        if shard not in self._indexes:
            num_chunks = self._chunks_per_shard * self.spec.num_captured
            num_bytes = index_size(num_chunks)
            start = os.fstat(descriptor).st_size - num_bytes
            if start < 0:
                raise TornObjectError(
                    f"{path} is shorter than its index of {num_bytes} bytes; use aerie validate --repair"
                )
            self._indexes[shard] = decode_index(os.pread(descriptor, num_bytes, start), num_chunks, f"index of {path}")
        return self._indexes[shard]


def _read_entry(descriptor: int, entry: npt.NDArray[Any], path: Path) -> bytes:
    offset, num_bytes = entry
    if offset == MISSING:
        raise TornObjectError(f"{path} lacks an inner chunk; use aerie validate --repair")
    if int(offset) + int(num_bytes) > os.fstat(descriptor).st_size:
        raise TornObjectError(f"{path} ends before byte {int(offset) + int(num_bytes)}; use aerie validate --repair")
    return os.pread(descriptor, int(num_bytes), int(offset))


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
    """

    states: StateArray
    ids: Column
    row_start: int
    num_tokens: int
    checksum: int

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
        """Return rows start..stop of the layers at `slots`, in the dtype on disk."""
        spec = self.states.spec
        out = np.empty((stop - start, len(slots), spec.hidden_size), spec.stored_dtype)
        if not out.size:
            return out
        wanted = self.chunks[start // TOKENS_PER_CHUNK : chunk_count(stop)]
        columns = {slot: [i for i, s in enumerate(slots) if s == slot] for slot in slots}
        for chunk, slot, data in self.states.read(wanted, sorted(columns)):
            values = decode_chunk(
                data, spec.stored_dtype, spec.hidden_size, f"chunk {chunk}, layer {spec.layers[slot]}"
            )
            first = (start // TOKENS_PER_CHUNK + chunk) * TOKENS_PER_CHUNK
            low, high = max(start, first), min(stop, first + TOKENS_PER_CHUNK)
            out[low - start : high - start, columns[slot]] = values[low - first : high - first, None]
        return out


class Sample:
    """One sample of a store.

    Args:
        sample_hash: its name.
        spec: what its states depend on.
        locate: finds its rows; called again when they have moved into a pack meanwhile.
    """

    def __init__(self, sample_hash: str, spec: StateSpec, locate: Callable[[], StoredRows]) -> None:
        self.sample_hash = sample_hash
        self._spec = spec
        self._locate = locate
        self._rows = locate()

    @property
    def num_tokens(self) -> int:
        """Number of tokens, the first axis of both arrays."""
        return self._rows.num_tokens

    @property
    def input_ids(self) -> npt.NDArray[np.int32]:
        """Token ids, int32[num_tokens].

        Raises:
            CorruptObjectError: the stored bytes are damaged.
        """
        return self._read(StoredRows.input_ids)

    def hidden_states(self, layers: Sequence[LayerId] | None = None, rows: slice | None = None) -> npt.NDArray[Any]:
        """Return states [rows, len(layers), hidden_size] in the storage dtype (bfloat16 as `ml_dtypes.bfloat16`).

        Args:
            layers: captured layers, in the order wanted; all by default.
            rows: a slice of step 1 over the tokens; all by default. Only the chunks it touches are decoded.

        Raises:
            SpecError: a layer was not captured.
            ValueError: the slice has another step.
            CorruptObjectError: the stored bytes are damaged.
        """
        slots = [self._slot(layer) for layer in (self._spec.layers if layers is None else layers)]
        start, stop, step = (rows or slice(None)).indices(self.num_tokens)
        if step != 1:
            raise ValueError(f"rows have step {step}, only 1 is read; take the step from the result")
        values = self._read(lambda found: found.hidden_states(slots, start, max(start, stop)))
        return values.view(ml_dtypes.bfloat16) if self._spec.storage_dtype == "bfloat16" else values

    def _slot(self, layer: LayerId) -> int:
        if layer not in self._spec.layers:
            raise SpecError(f"layer {layer!r} was not captured; the store has {list(self._spec.layers)}")
        return self._spec.layers.index(layer)

    def _read(self, read: Callable[[StoredRows], T]) -> T:
        try:
            return read(self._rows)
        except FileNotFoundError:
            self._rows = self._locate()
        with missing_is_torn(f"sample {self.sample_hash}"):
            return read(self._rows)
