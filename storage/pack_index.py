"""One pack on disk: which samples it holds and where; its samples are read through `StoredRows`."""

from pathlib import Path
from typing import Any

import numpy as np

from storage.arrays import group_document, hidden_states_document
from storage.codecs import TOKENS_PER_CHUNK, crc32c, strip_checksum
from storage.columns import DOCUMENT, Column
from storage.digests import canonical_json, is_digest, sample_hash, sha256_hex
from storage.errors import ChecksumError, CorruptObjectError, HashMismatchError
from storage.files import missing_is_torn, read_document
from storage.layout import FORMAT_VERSION, entries, packs_folder, removals_folder
from storage.samples import StateArray, StoredRows
from storage.specs import StateSpec


def pack_id_of(spec_digest: str, sample_hashes: list[str]) -> str:
    """Return the name of a pack: sha256 of the canonical JSON of the spec digest and the sorted sample hashes."""
    return sha256_hex(canonical_json([spec_digest, sorted(sample_hashes)]))


def pack_documents(
    spec: StateSpec, pack_id: str, num_samples: int, num_rows: int, shard_rows: int
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
    }
    return {
        DOCUMENT: group_document(attributes),
        f"hidden_states/{DOCUMENT}": hidden_states_document(spec, num_rows, shard_rows),
    }


class Pack:
    """The index of one pack, checked as a whole when it is opened.

    Attributes:
        pack_id: its name.
        sample_hashes: names of its samples, ascending.
        row_start: int64[n], first row of each sample.
        num_tokens: int64[n], rows of each sample.
        checksum: uint32[n], crc32c over each sample's encoded inner chunks in C order.

    Raises:
        FileNotFoundError: a file of the index is missing.
        CorruptObjectError: a file of the index is damaged.
    """

    def __init__(self, folder: Path, spec: StateSpec, pack_id: str) -> None:
        self.folder = folder
        self.pack_id = pack_id
        names = Column(folder / "sample_hash", "u1", (32,))[:]
        self.sample_hashes = [row.tobytes().hex() for row in names]
        self.row_start = Column(folder / "row_start", "<i8")[:]
        self.num_tokens = Column(folder / "num_tokens", "<i8")[:]
        self.checksum = Column(folder / "checksum", "<u4")[:]
        self.num_rows, self.shard_rows = self._check_documents(spec)
        self._check_index(spec)
        self._states = StateArray(folder / "hidden_states", spec, self.shard_rows)
        self._ids = Column(folder / "input_ids", "<i4")
        self._require(self._ids.num_rows == self.num_rows, "input_ids has another number of rows than hidden_states")

    def rows(self, position: int) -> StoredRows:
        """Return the rows of the sample at `position`."""
        start, num_tokens, checksum = (int(a[position]) for a in (self.row_start, self.num_tokens, self.checksum))
        return StoredRows(self._states, self._ids, start, num_tokens, checksum)

    def verify(self, position: int) -> int:
        """Check the stored bytes of one sample against the index, without decoding; give their number.

        Raises:
            FileNotFoundError, CorruptObjectError: they are missing or damaged.
        """
        rows = self.rows(position)
        verify_ids(rows, self.sample_hashes[position])
        return verify_chunks(rows)

    def _check_documents(self, spec: StateSpec) -> tuple[int, int]:
        documents = {path: read_document(self.folder / path) for path in (DOCUMENT, f"hidden_states/{DOCUMENT}")}
        attributes = documents[DOCUMENT].get("attributes")
        attributes = attributes if isinstance(attributes, dict) else {}
        num_rows, shard_rows = attributes.get("num_rows"), attributes.get("shard_rows")
        if not isinstance(num_rows, int) or not isinstance(shard_rows, int):
            raise CorruptObjectError(f"pack {self.folder}: no row counts in its zarr.json; use aerie validate --repair")
        expected = pack_documents(spec, self.pack_id, len(self.sample_hashes), num_rows, shard_rows)
        self._require(documents == expected, "its zarr.json documents are not those of this format")
        self._require(shard_rows > 0 and shard_rows % TOKENS_PER_CHUNK == 0, f"shard_rows is {shard_rows}")
        return num_rows, shard_rows

    def _check_index(self, spec: StateSpec) -> None:
        lengths = {len(self.sample_hashes), len(self.row_start), len(self.num_tokens), len(self.checksum)}
        self._require(len(lengths) == 1, "its index arrays differ in length")
        self._require(
            pack_id_of(spec.digest(), self.sample_hashes) == self.pack_id, "its sample hashes do not make its name"
        )
        padded = -(-self.num_tokens // TOKENS_PER_CHUNK) * TOKENS_PER_CHUNK
        ends = np.cumsum(padded)
        is_tight = np.array_equal(self.row_start, ends - padded) and bool((self.num_tokens > 0).all())
        self._require(is_tight and ends[-1] == self.num_rows, "its samples do not tile its rows")

    def _require(self, fits: bool, fault: str) -> None:
        if not fits:
            raise CorruptObjectError(f"pack {self.folder}: {fault}; use aerie validate --repair")


def verify_ids(rows: StoredRows, name: str) -> None:
    """Check that the stored token ids have the sample hash under which they are stored.

    Raises:
        FileNotFoundError, CorruptObjectError: they are missing, damaged or others.
    """
    found = sample_hash(rows.input_ids())
    if found != name:
        raise HashMismatchError(f"token ids stored under {name} have sample hash {found}; use aerie validate --repair")


def verify_chunks(rows: StoredRows) -> int:
    """Check the crc32c of each encoded inner chunk, and that over all of them; give their bytes.

    Raises:
        FileNotFoundError, CorruptObjectError: a chunk is missing or damaged.
    """
    num_bytes = checksum = 0
    for chunk in rows.encoded():
        strip_checksum(chunk.data, f"chunk {chunk.chunk}, slot {chunk.slot}")
        num_bytes += len(chunk.data)
        checksum = crc32c(chunk.data, checksum)
    verify_checksum(rows, checksum)
    return num_bytes


def verify_checksum(rows: StoredRows, checksum: int) -> None:
    """Check that the encoded chunks, whose crc32c in C order is `checksum`, are those that were recorded.

    Raises:
        ChecksumError: they are others, such as those of another sample.
    """
    if checksum != rows.checksum:
        raise ChecksumError(
            f"its chunks have crc32c {checksum:08x}, recorded is {rows.checksum:08x}; use aerie validate --repair"
        )


def pack_ids(store: Path, spec_digest: str) -> list[str]:
    """List the packs of one spec."""
    return sorted(entry.name for entry in entries(packs_folder(store, spec_digest)) if is_digest(entry.name))


def open_pack(store: Path, spec: StateSpec, pack_id: str) -> Pack:
    """Open a committed pack.

    Raises:
        CorruptObjectError: its index is damaged.
    """
    with missing_is_torn(f"pack {pack_id}"):
        return Pack(packs_folder(store, spec.digest()) / pack_id, spec, pack_id)


def removed_hashes(store: Path, spec_digest: str, pack_id: str) -> set[str]:
    """List the samples of a pack that repair has removed from it."""
    return {entry.name for entry in entries(removals_folder(store, spec_digest, pack_id)) if is_digest(entry.name)}
