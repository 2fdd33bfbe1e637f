"""Writing one pack: encoded inner chunks are copied into new shards as they are."""

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np
import numpy.typing as npt

from storage.arrays import encode_document
from storage.codecs import TOKENS_PER_CHUNK, Buffer, chunk_count, join_checksum, strip_checksum
from storage.columns import ColumnWriter, chunk_key, write_column
from storage.files import create_file, write_file
from storage.hashes import hashes_of
from storage.pack_index import pack_documents, pack_id_of
from storage.shards import ShardIndex
from storage.specs import StateSpec
from storage.state_arrays import EncodedChunk


class PackWriter:
    """Fill a staged folder with a pack; memory is one inner chunk and the index.

    Args:
        folder: the staged folder.
        spec: the spec of the states.
        shard_rows: rows of a shard, a multiple of `TOKENS_PER_CHUNK`; a pack with fewer has one shorter shard.
    """

    def __init__(self, folder: Path, spec: StateSpec, shard_rows: int) -> None:
        self._folder = folder
        self._spec = spec
        self._shard_rows = shard_rows
        self._shard = 0
        self._index = ShardIndex()
        self._file: BinaryIO | None = None
        self._ids = ColumnWriter(folder / "input_ids", "<i4", shard_rows)
        self._row_start: list[int] = []
        self._num_tokens: list[int] = []
        self._checksum: list[int] = []
        self.sample_hashes: list[str] = []
        self.num_rows = 0
        self.num_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, name: str, input_ids: npt.NDArray[np.int32], chunks: Iterable[EncodedChunk]) -> None:
        """Append one sample; names must come in ascending order.

        Args:
            name: its sample hash.
            input_ids: int32[num_tokens].
            chunks: all its encoded inner chunks, in C order.

        Raises:
            CorruptObjectError: a chunk does not have its crc32c; the pack must be given up.
        """
        checksum = 0
        for chunk in chunks:
            strip_checksum(chunk.data, f"sample {name}, chunk {chunk.chunk}, slot {chunk.slot}")
            self._append_chunk(chunk.data)
            checksum = join_checksum(chunk.data, checksum)
        padded = np.zeros(chunk_count(len(input_ids)) * TOKENS_PER_CHUNK, "<i4")
        padded[: len(input_ids)] = input_ids
        self._ids.append(padded)
        self.sample_hashes.append(name)
        self._row_start.append(self.num_rows)
        self._num_tokens.append(len(input_ids))
        self._checksum.append(checksum)
        self.num_rows += len(padded)

    def close(self) -> str:
        """Write the last shard's index, the index arrays and the metadata; return the pack's id."""
        if self._file is not None:
            self._finish_shard(self._file, len(self._index) if self._shard == 0 else self._chunks_per_shard)
        self._ids.close()
        hashes = hashes_of(self.sample_hashes)
        write_column(self._folder / "sample_hash", hashes)
        write_column(self._folder / "row_start", np.array(self._row_start, "<i8"))
        write_column(self._folder / "num_tokens", np.array(self._num_tokens, "<i8"))
        write_column(self._folder / "checksum", np.array(self._checksum, "<u4"))
        pack_id = pack_id_of(self._spec.digest(), hashes)
        shard_rows = min(self._shard_rows, self.num_rows)
        documents = pack_documents(self._spec, pack_id, len(self.sample_hashes), self.num_rows, shard_rows)
        for path, document in documents.items():
            write_file(self._folder, path, [encode_document(document)])
        return pack_id

    @property
    def _chunks_per_shard(self) -> int:
        return self._shard_rows // TOKENS_PER_CHUNK * self._spec.num_captured

    def _append_chunk(self, data: Buffer) -> None:
        if self._file is None:
            self._file = create_file(self._folder, f"hidden_states/{chunk_key(self._shard, 3)}")
        self.num_bytes += self._file.write(data)
        self._index.append(len(data))
        if len(self._index) == self._chunks_per_shard:
            self._finish_shard(self._file, self._chunks_per_shard)

    def _finish_shard(self, file: BinaryIO, num_chunks: int) -> None:
        file.write(self._index.encode(num_chunks))
        file.flush()
        os.fsync(file.fileno())
        # What is read back for verification should come from the disk.
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.close()
        self._file, self._index, self._shard = None, ShardIndex(), self._shard + 1
