"""The one codec chain of inner chunks: bytes (little-endian), blosc, crc32c; zarr's own pipeline reads it."""

import struct
from typing import Any, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import Blosc, blosc

from storage.errors import ChecksumError, CorruptObjectError, TornObjectError
from storage.planes import block_rows, encode_planes, split_planes

TOKENS_PER_CHUNK = 256
# Blosc's own block size cuts the exponent plane into pieces too small for zstd: ratio 1.24 instead of 1.42.
BLOCK_BYTES = 1 << 20
CHECKSUM_BYTES = 4
# The CRC-32C of any bytes followed by their own CRC-32C, little-endian.
CHECKED = 0x48674BC7
# https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst: bytes decoded, size of a block, bytes encoded.
BLOSC_HEADER = struct.Struct("<4x3I")
MEMCPYED = 0x02  # among the flags, its third byte: not in blocks, since nothing could be compressed

Buffer = bytes | memoryview
B = TypeVar("B", bytes, memoryview)

# What zarr itself writes by the metadata; `encode_chunk` is faster.
BLOSC = Blosc(cname="zstd", clevel=1, shuffle=Blosc.SHUFFLE, blocksize=BLOCK_BYTES)
# Callers decode on threads of their own; Blosc's would fight with them over the cores.
blosc.set_nthreads(1)


def crc32c(data: Buffer, value: int = 0) -> int:
    """Return the CRC-32C of `data`, continuing from `value`."""
    # It takes bytes and arrays, but no memoryview; and works without the GIL.
    return int(google_crc32c.extend(value, data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)))


def add_checksum(data: bytes) -> bytes:
    """Return `data` followed by its CRC-32C, as Zarr's crc32c codec does."""
    return data + struct.pack("<I", crc32c(data))


def strip_checksum(data: B, what: str) -> B:
    """Return `data` without its trailing CRC-32C.

    Raises:
        TornObjectError: `data` is too short to hold one.
        ChecksumError: it does not match.
    """
    if len(data) < CHECKSUM_BYTES:
        raise TornObjectError(f"{what} has {len(data)} bytes, less than a checksum; use aerie validate --repair")
    body: B = data[:-CHECKSUM_BYTES]
    if crc32c(data) != CHECKED:
        (stored,) = struct.unpack("<I", data[-CHECKSUM_BYTES:])
        raise ChecksumError(
            f"{what} has crc32c {crc32c(body):08x}, stored is {stored:08x}; use aerie validate --repair"
        )
    return body


def join_checksum(encoded: Buffer, joined: int = 0) -> int:
    """Return the CRC-32C over the trailing checksums of inner chunks, given that over those before `encoded`.

    Not over the chunks themselves: bytes that end in their own CRC-32C all have one and the same CRC-32C, so that over
    several would depend on their lengths alone.
    """
    return crc32c(encoded[-CHECKSUM_BYTES:], joined)


def encode_chunk(rows: npt.NDArray[Any], *, has_repeats: bool = False) -> bytes:
    """Encode one inner chunk.

    Args:
        rows: [at most TOKENS_PER_CHUNK, width], little-endian; rows of zeros follow up to TOKENS_PER_CHUNK.
        has_repeats: as in `planes.encode_planes`.
    """
    planes = split_planes(rows, TOKENS_PER_CHUNK, BLOCK_BYTES)
    return b"".join(encode_split_chunk(planes, len(rows), has_repeats=has_repeats))


def encode_split_chunk(planes: npt.NDArray[np.uint8], num_rows: int, *, has_repeats: bool = False) -> list[Buffer]:
    """Encode one inner chunk whose bytes are split as `planes.split_planes` does it, in parts; the last is its CRC."""
    parts = encode_planes(planes, num_rows, has_repeats=has_repeats)
    checksum = 0
    for part in parts:
        checksum = crc32c(part, checksum)
    return [*parts, struct.pack("<I", checksum)]


def split_shape(num_tokens: int, num_captured: int, width: int, itemsize: int) -> tuple[int, ...]:
    """Return the shape of a sample of which all inner chunks are split.

    Returns:
        (token-chunks, layers, blocks of a chunk, bytes of a value, rows of a block, width).
    """
    in_block = block_rows(TOKENS_PER_CHUNK, width * itemsize, BLOCK_BYTES)
    return (chunk_count(num_tokens), num_captured, TOKENS_PER_CHUNK // in_block, itemsize, in_block, width)


def decode_chunk(
    encoded: Buffer,
    dtype: np.dtype[Any],
    width: int,
    what: str,
    out: npt.NDArray[Any] | None = None,
    num_rows: int = TOKENS_PER_CHUNK,
) -> npt.NDArray[Any]:
    """Decode one inner chunk to `[TOKENS_PER_CHUNK, width]`; into `out`, which is contiguous, if it is given.

    Args:
        encoded: its bytes; where they can be written to and not all rows are wanted, they are spoilt.
        dtype: of a value.
        width: values of a row.
        what: names the chunk in errors.
        out: where to decode to.
        num_rows: rows that are wanted; those after them may be left as they were.

    Raises:
        CorruptObjectError: the checksum, the compressed stream or the size is wrong.
    """
    stream = strip_checksum(memoryview(encoded), what)
    _check_header(stream, TOKENS_PER_CHUNK * width * dtype.itemsize, what)
    values = np.empty((TOKENS_PER_CHUNK, width), dtype) if out is None else out
    if num_rows < TOKENS_PER_CHUNK and not stream.readonly:
        _drop_blocks(stream, num_rows * width * dtype.itemsize)
    try:
        blosc.decompress(stream, values)  # what BLOSC.decode does, without making an array of the stream first
    except RuntimeError as error:
        raise CorruptObjectError(f"{what} is not a Blosc stream: {error}; use aerie validate --repair") from error
    return values


def _drop_blocks(stream: memoryview, wanted_bytes: int) -> None:
    """Have a stream say that it ends with the block of the last byte that is wanted.

    A decoder finds each block by its place in a table, and how many there are by the sizes in the header
    (https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst).
    """
    num_bytes, block_bytes, _ = BLOSC_HEADER.unpack_from(stream)
    if block_bytes and not stream[2] & MEMCPYED:
        kept = min(num_bytes, -(-wanted_bytes // block_bytes) * block_bytes)
        stream[4:8] = kept.to_bytes(4, "little")


def _check_header(stream: Buffer, expected_bytes: int, what: str) -> None:
    """Refuse a stream whose decoding would not fill exactly `expected_bytes`: Blosc itself takes a larger output."""
    num_bytes, _, stream_bytes = BLOSC_HEADER.unpack_from(stream) if len(stream) >= BLOSC_HEADER.size else (0, 0, 0)
    if stream_bytes != len(stream):
        raise CorruptObjectError(f"{what} is not a Blosc stream of {len(stream)} bytes; use aerie validate --repair")
    if num_bytes != expected_bytes:
        raise CorruptObjectError(
            f"{what} decodes to {num_bytes} bytes, expected {expected_bytes}; use aerie validate --repair"
        )


def most_encoded_bytes(width: int, itemsize: int) -> int:
    """Return how many bytes an encoded inner chunk has at most, whatever encodes it: its blocks have lengths."""
    return 2 * TOKENS_PER_CHUNK * width * itemsize + 4096


def chunk_count(num_tokens: int) -> int:
    """Return how many inner chunks cover `num_tokens` rows of one layer."""
    return -(-num_tokens // TOKENS_PER_CHUNK)
