"""Writing one pack: encoded inner chunks are copied into new shards as they are, and read back while it goes on."""

from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from storage.arrays import encode_document
from storage.codecs import TOKENS_PER_CHUNK, chunk_count, crc32c
from storage.columns import ColumnWriter, chunk_key, write_column
from storage.errors import ChecksumError, CorruptObjectError
from storage.files import write_file
from storage.hashes import HASH_BYTES, Hashes, names_of
from storage.pack_index import Pack, pack_documents, pack_id_of
from storage.read_back import ChunkSums, ReadBack
from storage.samples import RoundingError
from storage.shard_writer import ShardWriter
from storage.specs import StateSpec
from storage.state_arrays import Run
from storage.verification import verify_ids


class DamagedCopyError(ChecksumError):
    """What was read back of a pack is not sound."""


class Source(NamedTuple):
    """A stored sample to be copied.

    Attributes:
        name: its sample hash.
        input_ids: int32[num_tokens].
        checksum: as recorded beside it.
        runs: where its encoded inner chunks lie, in C order.
        error: as recorded beside it; None where the spec is exact.
    """

    name: str
    input_ids: npt.NDArray[np.int32]
    checksum: int
    runs: Iterator[Run]
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
        self._shard: ShardWriter | None = None
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
        """Append one sample; names must come in ascending order. Its chunks are checked once they are read back.

        Raises:
            FileNotFoundError, CorruptObjectError: the source is damaged; the pack must be given up.
        """
        for run in source.runs:
            self._copy(run)
        num_tokens = len(source.input_ids)
        padded = np.zeros(chunk_count(num_tokens) * TOKENS_PER_CHUNK, "<i4")
        padded[:num_tokens] = source.input_ids
        self._ids.append(padded)
        self._hashes += bytes.fromhex(source.name)
        for column, value in zip(self._columns.values(), (self.num_rows, num_tokens, source.checksum), strict=True):
            column.append(value)
        self._errors.extend(source.error or ())
        self.num_rows += len(padded)

    def close(self) -> str:
        """Write what is left, and check what the disk gives back; return the pack's id.

        Raises:
            DamagedCopyError: chunks are not sound: a source was damaged, or the disk gave back other bytes.
            CorruptObjectError: the disk gave back another index than was written.
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
        self._check_chunks(self._read_back.finish())
        self._compare_index(Pack(self._folder, self._spec, pack_id))
        return pack_id

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = {name: np.array(values, f"<{values.typecode}") for name, values in self._columns.items()}
        if not self._spec.is_exact:
            arrays["rounding_error"] = np.array(self._errors, "<f4").reshape(-1, 2)
        return arrays

    def _check_chunks(self, found: ChunkSums) -> None:
        num_tokens = np.array(self._columns["num_tokens"], "<i8")
        ends = np.cumsum(-(-num_tokens // TOKENS_PER_CHUNK)) * self._spec.num_captured
        bounds = pairwise([0, *ends.tolist()])
        for (start, stop), checksum, name in zip(bounds, self._columns["checksum"], names_of(self.hashes), strict=True):
            is_sound = found.is_sound[start:stop].all()
            if not is_sound or crc32c(found.checksums[start:stop].tobytes()) != checksum:
                raise DamagedCopyError(f"the copy of sample {name} in {self._folder} is not sound; check the disk")

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

    def _copy(self, run: Run) -> None:
        offset, sizes = run.offset, run.sizes.tolist()
        while sizes:
            if self._shard is None:
                self._shard = self._open_shard()
            taken = sizes[: self._chunks_per_shard - len(self._shard)]
            self._shard.append(run.descriptor, offset, taken)
            offset, sizes = offset + sum(taken), sizes[len(taken) :]
            self.num_bytes += sum(taken)
            if len(self._shard) == self._chunks_per_shard:
                self._shard.close(self._chunks_per_shard)
                self._shard = None

    def _open_shard(self) -> ShardWriter:
        name = f"hidden_states/{chunk_key(self._shards, 3)}"
        self._shards += 1
        return self._stack.enter_context(ShardWriter(self._folder, name, self._read_back))
