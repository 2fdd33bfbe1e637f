"""Writing one pack: encoded inner chunks are copied into new shards as they are, and read back while it goes on."""

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storage.arrays import encode_document
from storage.codecs import TOKENS_PER_CHUNK, Buffer, chunk_count, crc32c, join_checksum, strip_checksum
from storage.columns import ColumnWriter, chunk_key, write_column
from storage.errors import CorruptObjectError
from storage.files import create_file, write_file
from storage.hashes import HASH_BYTES, Hashes
from storage.pack_index import Pack, pack_documents, pack_id_of
from storage.read_back import ReadBack
from storage.samples import RoundingError
from storage.shards import ShardIndex
from storage.specs import StateSpec
from storage.state_arrays import EncodedChunk
from storage.verification import verify_checksum, verify_ids

# Read back so many bytes at a time: small against a shard, large against what a call to the disk costs.
SEGMENT_BYTES = 64 << 20


class Source(NamedTuple):
    """A stored sample to be copied.

    Attributes:
        name: its sample hash.
        input_ids: int32[num_tokens].
        checksum: as recorded beside it.
        chunks: all its encoded inner chunks, in C order.
        error: as recorded beside it; None where the spec is exact.
    """

    name: str
    input_ids: npt.NDArray[np.int32]
    checksum: int
    chunks: Iterator[EncodedChunk]
    error: RoundingError | None


class PackWriter:
    """Fill a staged folder with a pack; memory is some inner chunks and the index.

    Args:
        folder: the staged folder.
        spec: the spec of the states.
        shard_rows: rows of a shard, a multiple of `TOKENS_PER_CHUNK`; a pack with fewer has one shorter shard.
        generation: 0, or more than that of any pack that it is made of.
    """

    def __init__(self, folder: Path, spec: StateSpec, shard_rows: int, generation: int = 0) -> None:
        self._folder = folder
        self._spec = spec
        self._shard_rows = shard_rows
        self._generation = generation
        self._stack = ExitStack()
        self._read_back = self._stack.enter_context(ReadBack())
        self._shards = 0
        self._shard: _ShardWriter | None = None
        self._ids = ColumnWriter(folder / "input_ids", "<i4", shard_rows)
        self._hashes = bytearray()
        self._columns = {"row_start": array("q"), "num_tokens": array("q"), "checksum": array("I")}
        self._errors = array("f")
        self.num_rows = 0
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def hashes(self) -> Hashes:
        """The samples added: uint8[n, 32]."""
        return np.frombuffer(bytes(self._hashes), "u1").reshape(-1, HASH_BYTES)

    def add(self, source: Source) -> None:
        """Append one sample; names must come in ascending order.

        Raises:
            FileNotFoundError, CorruptObjectError: the source is damaged; the pack must be given up.
        """
        joined = 0
        for chunk in source.chunks:
            strip_checksum(chunk.data, f"sample {source.name}, chunk {chunk.chunk}, slot {chunk.slot}")
            self._append_chunk(chunk.data)
            joined = join_checksum(chunk.data, joined)
        verify_checksum(joined, source.checksum)
        num_tokens = len(source.input_ids)
        padded = np.zeros(chunk_count(num_tokens) * TOKENS_PER_CHUNK, "<i4")
        padded[:num_tokens] = source.input_ids
        self._ids.append(padded)
        self._hashes += bytes.fromhex(source.name)
        for column, value in zip(self._columns.values(), (self.num_rows, num_tokens, joined), strict=True):
            column.append(value)
        self._errors.extend(source.error or ())
        self.num_rows += len(padded)

    def close(self) -> str:
        """Write what is left, and compare all with what the disk gives back; return the pack's id.

        Raises:
            CorruptObjectError: the disk gave back other bytes than were written.
        """
        if self._shard is not None:
            self._shard.close(len(self._shard) if self._shards == 1 else self._chunks_per_shard)
        self._ids.close()
        write_column(self._folder / "sample_hash", self.hashes)
        for name, values in self._arrays().items():
            write_column(self._folder / name, values)
        pack_id = pack_id_of(self._spec.digest(), self.hashes, self._generation)
        shape = (len(self.hashes), self.num_rows, min(self._shard_rows, self.num_rows))
        for path, document in pack_documents(self._spec, pack_id, *shape, self._generation).items():
            write_file(self._folder, path, [encode_document(document)])
        self._read_back.finish()
        self._compare_index(Pack(self._folder, self._spec, pack_id))
        return pack_id

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = {name: np.array(values, f"<{values.typecode}") for name, values in self._columns.items()}
        if not self._spec.is_exact:
            arrays["rounding_error"] = np.array(self._errors, "<f4").reshape(-1, 2)
        return arrays

    def _compare_index(self, pack: Pack) -> None:
        written = {"hashes": self.hashes, **self._arrays()}
        if not all(np.array_equal(getattr(pack, name), values) for name, values in written.items()):
            raise CorruptObjectError(
                f"{self._folder} was read back with another index than was written; check the disk"
            )
        for position in range(len(pack)):
            verify_ids(pack.rows(position), pack.name(position))

    @property
    def _chunks_per_shard(self) -> int:
        return self._shard_rows // TOKENS_PER_CHUNK * self._spec.num_captured

    def _append_chunk(self, data: Buffer) -> None:
        if self._shard is None:
            key = chunk_key(self._shards, 3)
            self._shard = self._stack.enter_context(_ShardWriter(self._folder, f"hidden_states/{key}", self._read_back))
            self._shards += 1
        self._shard.append(data)
        self.num_bytes += len(data)
        if len(self._shard) == self._chunks_per_shard:
            self._shard.close(self._chunks_per_shard)
            self._shard = None


class _ShardWriter:
    """One shard file, handed over for reading back a segment at a time."""

    def __init__(self, folder: Path, name: str, read_back: ReadBack) -> None:
        self._path = folder / name
        self._file: BinaryIO = create_file(folder, name)
        self._read_back = read_back
        self._index = ShardIndex()
        self._start = self._stop = self._checksum = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._index)

    def append(self, data: Buffer) -> None:
        """Append one encoded inner chunk."""
        self._index.append(len(data))
        self._write(data)
        if self._stop - self._start >= SEGMENT_BYTES:
            self._hand_over()

    def close(self, num_chunks: int) -> None:
        """Append the index of a shard of `num_chunks` inner chunks."""
        self._write(self._index.encode(num_chunks))
        self._hand_over()
        self._file.close()

    def _write(self, data: Buffer) -> None:
        self._stop += self._file.write(data)
        self._checksum = crc32c(data, self._checksum)

    def _hand_over(self) -> None:
        self._file.flush()
        self._read_back.submit(self._path, self._start, self._stop, self._checksum)
        self._start, self._checksum = self._stop, 0
