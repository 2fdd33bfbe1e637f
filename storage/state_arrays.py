"""A `hidden_states` array on disk, read by encoded inner chunk; those that lie together are read together."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.backends import Reader
from storage.codecs import TOKENS_PER_CHUNK, most_encoded_bytes
from storage.columns import chunk_key
from storage.errors import TornObjectError
from storage.files import backend_of
from storage.paths import StorePath
from storage.scratch import Scratch
from storage.shards import MISSING, check_index, decode_index, index_size
from storage.specs import StateSpec


class EncodedChunk(NamedTuple):
    """One encoded inner chunk: number of its token-chunk within the sample, slot of its layer, bytes."""

    chunk: int
    slot: int
    data: memoryview


class Run(NamedTuple):
    """Encoded inner chunks that lie back to back in a file.

    Attributes:
        descriptor: the file, open for reading until the next run is asked for.
        offset: byte of the first chunk.
        sizes: bytes of each chunk: uint64[n].
    """

    descriptor: int
    offset: int
    sizes: npt.NDArray[np.uint64]


class _Entry(NamedTuple):
    chunk: int
    slot: int
    offset: int
    num_bytes: int


class StateArray:
    """A stored `hidden_states` array; it holds no file open between reads, so threads and forks may share it.

    Args:
        path: the array's folder.
        spec: gives the number of layers and the hidden size.
        shard_rows: rows of a shard, a multiple of `TOKENS_PER_CHUNK`.
    """

    def __init__(self, path: StorePath, spec: StateSpec, shard_rows: int) -> None:
        self.spec = spec
        self.path = path
        self._open = backend_of(path).open
        self._chunks_per_shard = shard_rows // TOKENS_PER_CHUNK
        self._indexes: dict[int, npt.NDArray[Any]] = {}

    def require(self, chunks: range) -> None:
        """See that the shards have all inner chunks of token-chunks, before memory is taken for what they decode to.

        Raises:
            FileNotFoundError: a shard is missing.
            CorruptObjectError: a chunk is missing, or the shard's index is damaged.
        """
        for shard in range(chunks.start // self._chunks_per_shard, -(-chunks.stop // self._chunks_per_shard)):
            first = shard * self._chunks_per_shard
            here = slice(max(chunks.start - first, 0), chunks.stop - first)
            index = self._indexes.get(shard)
            if index is None:  # else the file need not be opened, as it will be for what it holds
                with closing(self._open(self.shard_path(shard))) as reader:
                    index = self._index(shard, reader)
            self._require_present(index[here], shard)

    def read(self, chunks: range, slots: Sequence[int], scratch: Scratch | None = None) -> Iterator[EncodedChunk]:
        """Read inner chunks in C order.

        Args:
            chunks: token-chunks, counted from the array's first row; in the result they count from `chunks.start`.
            slots: layers, by their position in the array.
            scratch: where to read to; the bytes of a chunk are then good until the next one is asked for.

        Raises:
            FileNotFoundError: a shard is missing.
            CorruptObjectError: a chunk is missing or lies outside its shard, or the shard's index is damaged.
        """
        for shard in range(chunks.start // self._chunks_per_shard, -(-chunks.stop // self._chunks_per_shard)):
            path = self.shard_path(shard)
            reader = self._open(path)
            try:
                for piece in _pieces(self._entries(shard, chunks, slots, reader), reader):
                    data, start = _read_piece(reader, piece, path, scratch), piece[0].offset
                    for chunk, slot, offset, num_bytes in piece:
                        yield EncodedChunk(chunk, slot, data[offset - start : offset - start + num_bytes])
            finally:
                reader.close()

    def runs(self, chunks: range) -> Iterator[Run]:
        """Return where the inner chunks of all layers of token-chunks lie, in C order; a run at least for each shard.

        Raises:
            FileNotFoundError: a shard is missing.
            CorruptObjectError: a chunk is missing, or the shard's index is damaged.
        """
        for shard in range(chunks.start // self._chunks_per_shard, -(-chunks.stop // self._chunks_per_shard)):
            first = shard * self._chunks_per_shard
            here = slice(max(chunks.start - first, 0), chunks.stop - first)
            with closing(self._open(self.shard_path(shard))) as reader:
                offsets, sizes = self._index(shard, reader)[here].reshape(-1, 2).T
                self._require_present(offsets, shard)
                cuts = np.flatnonzero(offsets[1:] != offsets[:-1] + sizes[:-1]) + 1
                for start, stop in pairwise([0, *cuts.tolist(), len(offsets)]):
                    yield Run(*reader.spool(int(offsets[start]), int(sizes[start:stop].sum())), sizes[start:stop])

    def _require_present(self, offsets: npt.NDArray[Any], shard: int) -> None:
        if (offsets == MISSING).any():
            raise TornObjectError(f"{self.shard_path(shard)} lacks an inner chunk; use aerie validate --repair")

    def shard_path(self, shard: int) -> str:
        """Return the file of a shard."""
        return f"{self.path}/{chunk_key(shard, 3)}"

    def encoded_bytes(self, num_chunks: int) -> npt.NDArray[np.int64]:
        """Return the encoded bytes of the first token-chunks, over all layers: int64[num_chunks]; reads indexes alone.

        Raises:
            FileNotFoundError: a shard is missing.
            CorruptObjectError: the index of a shard is damaged.
        """
        found = np.zeros(num_chunks, np.int64)
        for shard in range(-(-num_chunks // self._chunks_per_shard)):
            here = slice(shard * self._chunks_per_shard, min(num_chunks, (shard + 1) * self._chunks_per_shard))
            with closing(self._open(self.shard_path(shard))) as reader:
                index = self._index(shard, reader)[: here.stop - here.start, :, 1]
            found[here] = index.sum(axis=1, where=index != MISSING)
        return found

    def _entries(self, shard: int, chunks: range, slots: Sequence[int], reader: Reader) -> list[_Entry]:
        first = shard * self._chunks_per_shard
        here = range(max(chunks.start, first), min(chunks.stop, first + self._chunks_per_shard))
        index = self._index(shard, reader)[here.start - first : here.stop - first]
        rows = zip(here, index.tolist(), strict=True)
        return [_Entry(chunk - chunks.start, slot, *row[slot]) for chunk, row in rows for slot in slots]

    def _index(self, shard: int, reader: Reader) -> npt.NDArray[Any]:
        """Return uint64[token-chunks of a shard, num_captured, 2]: offset and length of each inner chunk."""
        if shard not in self._indexes:
            path = self.shard_path(shard)
            num_chunks = self._chunks_per_shard * self.spec.num_captured
            num_bytes = index_size(num_chunks)
            data, shard_bytes = reader.read_tail(num_bytes)
            if len(data) < num_bytes:
                raise TornObjectError(
                    f"{path} is shorter than its index of {num_bytes} bytes; use aerie validate --repair"
                )
            index = decode_index(data, num_chunks, f"index of {path}")
            most = most_encoded_bytes(self.spec.stored_width, self.spec.stored_dtype.itemsize)
            check_index(index, shard_bytes - num_bytes, most, f"index of {path}")
            self._indexes[shard] = index.reshape(self._chunks_per_shard, self.spec.num_captured, 2)
        return self._indexes[shard]


def _pieces(entries: Iterable[_Entry], reader: Reader) -> Iterator[list[_Entry]]:
    """Group the inner chunks that lie back to back, or near each other, up to what the reader reads at a time."""
    piece: list[_Entry] = []
    start = stop = 0
    piece_bytes, gap_bytes = reader.piece_bytes, reader.gap_bytes
    for entry in entries:
        _, _, offset, num_bytes = entry
        if piece and not (0 <= offset - stop <= gap_bytes and offset + num_bytes - start <= piece_bytes):
            yield piece
            piece = []
        if not piece:
            start = offset
        piece.append(entry)
        stop = offset + num_bytes
    if piece:
        yield piece


def _read_piece(reader: Reader, piece: list[_Entry], path: str, scratch: Scratch | None) -> memoryview:
    start, last = piece[0].offset, piece[-1]
    if MISSING in (start, last.offset):  # a missing chunk is never near another
        raise TornObjectError(f"{path} lacks an inner chunk; use aerie validate --repair")
    stop = last.offset + last.num_bytes
    data = reader.read(start, stop - start, None if scratch is None else scratch.piece(stop - start))
    if len(data) < stop - start:
        raise TornObjectError(f"{path} ends before byte {stop}; use aerie validate --repair")
    return data
