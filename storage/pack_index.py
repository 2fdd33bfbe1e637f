"""One stored pack: which samples it holds and where; its samples are read through `StoredRows`."""

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.arrays import group_document, hidden_states_document
from storage.codecs import TOKENS_PER_CHUNK, chunk_count
from storage.columns import DOCUMENT, Column
from storage.errors import CorruptObjectError
from storage.files import read_document
from storage.hashes import HASH_BYTES, Hashes, is_ascending, json_pieces, names_of
from storage.layout import FORMAT_VERSION, digest_in
from storage.limits import MAX_ROWS, MAX_TOKENS, is_number
from storage.paths import StorePath
from storage.samples import RoundingError, StoredRows
from storage.specs import StateSpec
from storage.state_arrays import StateArray
from storage.verification import verify_chunks, verify_ids


def pack_id_of(spec_digest: str, hashes: Hashes, generation: int = 0) -> str:
    """Return the name of a pack: sha256 of the canonical JSON of spec digest, ascending sample hashes and generation.

    Without the generation if that is 0.
    """
    digest = hashlib.sha256(f'["{spec_digest}",'.encode())
    for piece in json_pieces(hashes):
        digest.update(piece)
    digest.update(f",{generation}]".encode() if generation else b"]")
    return digest.hexdigest()


def pack_documents(
    spec: StateSpec, pack_id: str, num_samples: int, num_rows: int, shard_rows: int, generation: int = 0
) -> dict[str, dict[str, Any]]:
    """Return the zarr.json documents of a pack, but those of its columns, by path."""
    attributes = {
        "format_version": FORMAT_VERSION,
        "pack_id": pack_id,
        "spec_digest": spec.digest(),
        "layers": list(spec.layers),
        "num_samples": num_samples,
        "num_rows": num_rows,
        "shard_rows": shard_rows,
        **({"generation": generation} if generation else {}),
    }
    return {
        DOCUMENT: group_document(attributes),
        f"hidden_states/{DOCUMENT}": hidden_states_document(spec, num_rows, shard_rows),
    }


class Pack:
    """The index of one pack, checked as a whole when it is opened.

    Attributes:
        pack_id: its name in the store, which begins with that of the format.
        hashes: uint8[n, 32], hashes of its samples, ascending.
        row_start: int64[n], first row of each sample.
        num_tokens: int64[n], rows of each sample.
        checksum: uint32[n], crc32c over the checksums of each sample's inner chunks in C order.
        rounding_error: float32[n, 2], `RoundingError` of each sample; None where the spec is exact.
        num_rows: rows, those between the samples included.
        shard_rows: rows of a shard.
        generation: 0 for a pack of loose objects alone, else more than that of any pack that it was made of.

    Raises:
        FileNotFoundError: a file of the index is missing.
        CorruptObjectError: a file of the index is damaged.
    """

    def __init__(self, folder: StorePath, spec: StateSpec, pack_id: str) -> None:
        self.folder = folder
        self.pack_id = pack_id
        self.hashes = Column(folder / "sample_hash", "u1", (HASH_BYTES,))[:]
        self.row_start = Column(folder / "row_start", "<i8")[:]
        self.num_tokens = Column(folder / "num_tokens", "<i8")[:]
        self.checksum = Column(folder / "checksum", "<u4")[:]
        self.rounding_error = None if spec.is_exact else Column(folder / "rounding_error", "<f4", (2,))[:]
        self.num_rows, self.shard_rows, self.generation = self._check_documents(spec)
        self._check_index(spec)
        self._states = StateArray(folder / "hidden_states", spec, self.shard_rows)
        self._ids = Column(folder / "input_ids", "<i4")
        self._require(self._ids.num_rows == self.num_rows, "input_ids has another number of rows than hidden_states")

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def sample_hashes(self) -> list[str]:
        """The names of its samples, ascending."""
        return names_of(self.hashes)

    def name(self, position: int) -> str:
        """Return the name of the sample at `position`."""
        return str(self.hashes[position].tobytes().hex())

    def rows(self, position: int) -> StoredRows:
        """Return the rows of the sample at `position`."""
        start, num_tokens, checksum = (int(a[position]) for a in (self.row_start, self.num_tokens, self.checksum))
        error = None if self.rounding_error is None else RoundingError(*self.rounding_error[position].tolist())
        return StoredRows(self._states, self._ids, start, num_tokens, checksum, error)

    def encoded_bytes(self) -> npt.NDArray[np.int64]:
        """Return the encoded bytes of each sample: int64[n]; reads the indexes of the shards alone.

        Raises:
            FileNotFoundError: a shard is missing.
            CorruptObjectError: the index of a shard is damaged.
        """
        found = self._states.encoded_bytes(chunk_count(self.num_rows))
        return np.add.reduceat(found, self.row_start // TOKENS_PER_CHUNK)

    def verify(self, position: int) -> int:
        """Check the stored bytes of one sample against the index, without decoding; give their number.

        Raises:
            FileNotFoundError, CorruptObjectError: they are missing or damaged.
        """
        rows = self.rows(position)
        verify_ids(rows, self.name(position))
        return verify_chunks(rows)

    def _check_documents(self, spec: StateSpec) -> tuple[int, int, int]:
        documents = {path: read_document(self.folder / path) for path in (DOCUMENT, f"hidden_states/{DOCUMENT}")}
        attributes = documents[DOCUMENT].get("attributes")
        known = {"generation": 0} | (attributes if isinstance(attributes, dict) else {})
        numbers = [known.get(name) for name in ("num_rows", "shard_rows", "generation")]
        num_rows, shard_rows, generation = (number if is_number(number, MAX_ROWS) else -1 for number in numbers)
        expected = pack_documents(spec, digest_in(self.pack_id), len(self), num_rows, shard_rows, generation)
        self._require(documents == expected, "its zarr.json documents are not those of this format")
        self._require(shard_rows > 0 and shard_rows % TOKENS_PER_CHUNK == 0, f"shard_rows is {shard_rows}")
        self._require(generation >= 0, f"generation is {generation}")
        return num_rows, shard_rows, generation

    def _check_index(self, spec: StateSpec) -> None:
        lengths = {len(self), len(self.row_start), len(self.num_tokens), len(self.checksum)}
        lengths |= set() if self.rounding_error is None else {len(self.rounding_error)}
        self._require(len(lengths) == 1, "its index arrays differ in length")
        self._require(len(self) > 0 and is_ascending(self.hashes), "its sample hashes do not ascend")
        is_long = (self.num_tokens < 1) | (self.num_tokens > MAX_TOKENS)
        self._require(not is_long.any(), f"a sample has other than 1 to {MAX_TOKENS} tokens")
        pack_id = pack_id_of(spec.digest(), self.hashes, self.generation)
        self._require(pack_id == digest_in(self.pack_id), "its sample hashes do not make its name")
        padded = -(-self.num_tokens // TOKENS_PER_CHUNK) * TOKENS_PER_CHUNK
        ends = np.cumsum(padded)
        is_tight = np.array_equal(self.row_start, ends - padded)
        self._require(is_tight and ends[-1] == self.num_rows, "its samples do not tile its rows")

    def _require(self, fits: bool, fault: str) -> None:
        if not fits:
            raise CorruptObjectError(f"pack {self.folder}: {fault}; use aerie validate --repair")
