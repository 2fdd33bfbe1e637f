"""Loose objects: one Zarr group a sample, committed as a whole."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.arrays import encode_document, group_document, hidden_states_document
from storage.codecs import (
    BLOCK_BYTES,
    TOKENS_PER_CHUNK,
    Buffer,
    chunk_count,
    crc32c,
    encode_split_chunk,
    join_checksum,
    split_shape,
)
from storage.columns import DOCUMENT, Column, chunk_key, write_column
from storage.digests import sample_hash
from storage.errors import CorruptObjectError, SampleShapeError
from storage.files import commit, find_group, folder_bytes, has_group, read_document, staging, write_file
from storage.layout import FORMAT_VERSION, check_version, object_path
from storage.limits import MAX_CHECKSUM, MAX_TOKENS, is_number
from storage.paths import StorePath
from storage.planes import split_planes
from storage.rounding import round_states
from storage.samples import RoundingError, StoredRows
from storage.shards import ShardIndex
from storage.specs import LayerId, StateSpec, bits_of
from storage.state_arrays import StateArray


@dataclass(frozen=True)
class ObjectInfo:
    """What `ObjectWriter.write` did.

    Attributes:
        sample_hash: the sample's name.
        num_tokens: rows stored.
        raw_bytes: its states as they were given, uncompressed.
        stored_bytes: all files of its object.
        existed: it was there already, or another writer was faster; nothing was written.
    """

    sample_hash: str
    num_tokens: int
    raw_bytes: int
    stored_bytes: int
    existed: bool


# Encoded inner chunks in C order, each in parts, and how far they are from what was given.
Chunks = Iterator[list[Buffer]]
Encoded = tuple[Chunks, RoundingError | None]
Span = Callable[[str], AbstractContextManager[None]]


class ObjectWriter:
    """Write loose objects of one spec; may be shared by threads, and encoding releases the GIL.

    Args:
        store_path: the store.
        spec: of the states.
        span: what times the parts of a write, `encode` and `commit`.

    Raises:
        StoreNotFoundError, NotAStoreError, StoreVersionError: `store_path` is no store of this version.
    """

    def __init__(self, store_path: StorePath, spec: StateSpec, span: Span = lambda _: nullcontext()) -> None:
        check_version(store_path)
        self._store = store_path
        self._spec = spec
        self._digest = spec.digest()
        self._span = span

    def write(
        self,
        input_ids: npt.NDArray[np.int32],
        hidden_states: npt.NDArray[Any],
        on_encoded: Callable[[], None] = lambda: None,
    ) -> ObjectInfo:
        """Store one sample, wholly or not at all; on disk when this returns.

        Args:
            input_ids: int32[num_tokens].
            hidden_states: [num_tokens, num_captured, hidden_size] in the dtype of the spec's states (bfloat16 also as
                uint16 bits).
            on_encoded: called once `hidden_states` are not looked at any more: what is left waits for the disk. Not
                called for a sample that is there already.

        Raises:
            SampleShapeError, SpecError: the arrays do not fit each other or the spec.
            StoreFullError, StoreReadOnlyError: the store cannot be written.
        """
        spec = self._spec
        self._check_shape(input_ids, hidden_states, (len(input_ids), spec.num_captured, spec.hidden_size))
        states = bits_of(hidden_states, spec)

        def encode() -> Encoded:
            rounded, error = round_states(states, spec)
            return _encode_chunks(rounded, spec.layers), error

        return self._write(input_ids, encode, on_encoded)

    def write_split(
        self,
        input_ids: npt.NDArray[np.int32],
        planes: npt.NDArray[np.uint8],
        on_encoded: Callable[[], None] = lambda: None,
    ) -> ObjectInfo:
        """Store one sample whose bytes are split already, as `write` does; the spec stores its states exactly.

        Args:
            input_ids: int32[num_tokens].
            planes: uint8 of the shape `codecs.split_shape`: of each inner chunk those of `planes.split_planes`.
            on_encoded: as of `write`.

        Raises:
            SampleShapeError: the arrays do not fit each other or the spec.
            StoreFullError, StoreReadOnlyError: the store cannot be written.
        """
        spec = self._spec
        expected = split_shape(len(input_ids), spec.num_captured, spec.hidden_size, spec.stored_dtype.itemsize)
        self._check_shape(input_ids, planes, expected)

        def encode() -> Encoded:
            return _encode_split_chunks(planes, len(input_ids), spec.layers), None

        return self._write(input_ids, encode, on_encoded)

    def _check_shape(
        self, input_ids: npt.NDArray[np.int32], hidden_states: npt.NDArray[Any], expected: tuple[int, ...]
    ) -> None:
        if input_ids.ndim != 1 or not 1 <= len(input_ids) <= MAX_TOKENS:
            raise SampleShapeError(
                f"input_ids have shape {input_ids.shape}; give [num_tokens] with 1 to {MAX_TOKENS} tokens"
            )
        if hidden_states.shape != expected:
            raise SampleShapeError(
                f"hidden_states have shape {hidden_states.shape}; {expected} was expected from ids and spec"
            )

    def _write(
        self, input_ids: npt.NDArray[np.int32], encode: Callable[[], Encoded], on_encoded: Callable[[], None]
    ) -> ObjectInfo:
        raw_bytes = len(input_ids) * self._spec.bytes_per_token
        name = sample_hash(input_ids)
        final = object_path(self._store, self._digest, name)
        if has_group(final):
            return ObjectInfo(name, len(input_ids), raw_bytes, folder_bytes(final), existed=True)
        with staging(self._store, lambda: raw_bytes) as staged:
            with self._span("encode"):
                self._write_group(staged, name, input_ids, *encode())
            on_encoded()
            stored_bytes = folder_bytes(staged)
            with self._span("commit"):
                folder = commit(staged, final, self._store)
        return ObjectInfo(name, len(input_ids), raw_bytes, stored_bytes, existed=folder is None)

    def _write_group(
        self,
        folder: Path,
        name: str,
        input_ids: npt.NDArray[np.int32],
        chunks: Chunks,
        error: RoundingError | None,
    ) -> None:
        shard = _Shard(chunks)
        write_file(folder, f"hidden_states/{chunk_key(0, 3)}", shard.parts())
        write_column(folder / "input_ids", input_ids.astype("<i4", copy=False))
        documents = loose_documents(self._spec, self._digest, name, len(input_ids), shard.checksum, error)
        for path, document in documents.items():
            write_file(folder, path, [encode_document(document)])


def loose_documents(
    spec: StateSpec, spec_digest: str, name: str, num_tokens: int, checksum: int, error: RoundingError | None
) -> dict[str, dict[str, Any]]:
    """Return the zarr.json documents of a loose object, but that of `input_ids`, by path."""
    attributes = {
        "format_version": FORMAT_VERSION,
        "sample_hash": name,
        "spec_digest": spec_digest,
        "num_tokens": num_tokens,
        "layers": list(spec.layers),
        "checksum": checksum,
        **({} if error is None else {"rounding_error": [*error, _checksum_of(error)]}),
    }
    shard_rows = chunk_count(num_tokens) * TOKENS_PER_CHUNK
    return {
        DOCUMENT: group_document(attributes),
        f"hidden_states/{DOCUMENT}": hidden_states_document(spec, num_tokens, shard_rows),
    }


def open_loose(place: StorePath, spec: StateSpec) -> StoredRows:
    """Return the rows of a loose object.

    Raises:
        FileNotFoundError: the object, or a file of it, is missing.
        CorruptObjectError: its metadata is damaged.
    """
    folder = find_group(place)
    attributes = read_document(folder / DOCUMENT).get("attributes")
    known = attributes if isinstance(attributes, dict) else {}
    num_tokens, checksum = known.get("num_tokens"), known.get("checksum")
    if not is_number(num_tokens, MAX_TOKENS, 1) or not is_number(checksum, MAX_CHECKSUM):
        said = f"num_tokens {num_tokens!r:.40}, checksum {checksum!r:.40}"
        raise CorruptObjectError(
            f"{folder / DOCUMENT} says {said}; a sample has 1 to {MAX_TOKENS} tokens; use aerie validate --repair"
        )
    states = StateArray(folder / "hidden_states", spec, chunk_count(num_tokens) * TOKENS_PER_CHUNK)
    error = None if spec.is_exact else _read_error(known.get("rounding_error"), folder)
    return StoredRows(states, Column(folder / "input_ids", "<i4"), 0, num_tokens, checksum, error)


def _read_error(recorded: Any, folder: StorePath) -> RoundingError:
    """Return what `loose_documents` recorded; nothing else in the store would tell of a flipped bit in it."""
    is_list = isinstance(recorded, list) and [type(number) for number in recorded] == [float, float, int]
    if not is_list or recorded[2] != _checksum_of(RoundingError(*recorded[:2])):
        raise CorruptObjectError(f"{folder / DOCUMENT} says rounding_error {recorded!r}; use aerie validate --repair")
    return RoundingError(*recorded[:2])


def _checksum_of(error: RoundingError) -> int:
    return crc32c(np.array(error, "<f8").tobytes())


class _Shard:
    """The bytes of a sample's one shard, and the checksum over those of its inner chunks once they have been taken."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self.checksum = 0

    def parts(self) -> Iterator[Buffer]:
        index = ShardIndex()
        for encoded in self._chunks:
            index.append(sum(map(len, encoded)))
            self.checksum = join_checksum(encoded[-1], self.checksum)
            yield from encoded
        yield index.encode(len(index))


def _encode_chunks(states: npt.NDArray[Any], layers: Sequence[LayerId]) -> Chunks:
    """Encode the inner chunks of states [num_tokens, num_captured, width] as they lie on disk."""
    for first in range(0, len(states), TOKENS_PER_CHUNK):
        rows = states[first : first + TOKENS_PER_CHUNK]
        for slot, layer in enumerate(layers):
            planes = split_planes(rows[:, slot], TOKENS_PER_CHUNK, BLOCK_BYTES)
            yield encode_split_chunk(planes, len(rows), has_repeats=layer == 0)


def _encode_split_chunks(planes: npt.NDArray[np.uint8], num_tokens: int, layers: Sequence[LayerId]) -> Chunks:
    for number, chunk in enumerate(planes):
        num_rows = min(TOKENS_PER_CHUNK, num_tokens - number * TOKENS_PER_CHUNK)
        for slot, layer in enumerate(layers):
            yield encode_split_chunk(chunk[slot], num_rows, has_repeats=layer == 0)
