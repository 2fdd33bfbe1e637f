"""The index of a Zarr v3 shard: where each encoded inner chunk lies. Pure, no I/O.

A shard file is its encoded inner chunks, then the index, then the index's crc32c. Ours holds the inner chunks in
C order (all layers of token-chunk 0, then of 1, ...), so that a sample is one contiguous range of bytes.
"""

from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.codecs import CHECKSUM_BYTES, add_checksum, strip_checksum
from storage.errors import CorruptObjectError, TornObjectError

# https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed: an empty chunk has both numbers 2^64 - 1.
MISSING = np.uint64(2**64 - 1)
ENTRY_BYTES = 16


def index_size(num_chunks: int) -> int:
    """Return the bytes of the index of `num_chunks` inner chunks, checksum included."""
    return num_chunks * ENTRY_BYTES + CHECKSUM_BYTES


class ShardIndex:
    """Offsets and lengths of the inner chunks of a shard that is being written front to back, in C order."""

    def __init__(self) -> None:
        self._entries = array("Q")
        self._end_bytes = 0

    def __len__(self) -> int:
        return len(self._entries) // 2

    def append(self, num_bytes: int) -> None:
        """Record that the next inner chunk takes the next `num_bytes`."""
        self._entries.extend((self._end_bytes, num_bytes))
        self._end_bytes += num_bytes

    def encode(self, num_chunks: int) -> bytes:
        """Return the index as it ends a shard of `num_chunks` inner chunks; those not written are empty."""
        entries = np.full((num_chunks, 2), MISSING, "<u8")
        entries[: len(self)] = np.array(self._entries, "<u8").reshape(-1, 2)
        return add_checksum(entries.tobytes())


def check_index(index: npt.NDArray[Any], num_bytes: int, most: int, what: str) -> None:
    """Refuse an index whose inner chunks lie outside the bytes before it, share bytes, or are larger than any can be.

    A few bytes that many entries name would otherwise be decoded again and again.

    Args:
        index: uint64[..., 2], as of `decode_index`.
        num_bytes: of the shard before its index.
        most: bytes that an encoded inner chunk may have.
        what: names the index in errors.

    Raises:
        TornObjectError: it says such things.
    """
    offsets, sizes = index.reshape(-1, 2)[index.reshape(-1, 2)[:, 0] != MISSING].T
    fits = (offsets <= num_bytes) & (sizes <= np.uint64(num_bytes) - np.minimum(offsets, np.uint64(num_bytes)))
    fits &= (sizes > CHECKSUM_BYTES) & (sizes <= most)
    if not fits.all() or int(sizes.sum()) > num_bytes:
        raise TornObjectError(f"{what} names bytes that its shard has not; use aerie validate --repair")


def decode_index(encoded: bytes | memoryview, num_chunks: int, what: str) -> npt.NDArray[Any]:
    """Return the index as uint64[num_chunks, 2]: offset and length of each inner chunk, in bytes.

    Raises:
        CorruptObjectError: its size or checksum is wrong.
    """
    entries = strip_checksum(memoryview(encoded), what)
    if len(entries) != num_chunks * ENTRY_BYTES:
        raise CorruptObjectError(
            f"{what} has {len(entries)} bytes, expected {num_chunks * ENTRY_BYTES}; use aerie validate --repair"
        )
    return np.frombuffer(entries, "<u8").reshape(num_chunks, 2)
