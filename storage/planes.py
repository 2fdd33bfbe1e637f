"""Inner chunks as byte planes, each compressed for what it is; together a Blosc stream as any other.

Blosc with shuffle and zstd puts the bytes of each place in a value beside each other, and compresses all of them alike.
The format lets a block have a stream for each place, compressed or as it is, and readers take what they find
(https://github.com/Blosc/c-blosc/blob/main/README_CHUNK_FORMAT.rst and, for the streams, `blosc_d` in blosc/blosc.c).
So mantissas, which nothing makes shorter, are stored as they are, and exponents go through zstd's entropy coder without
a search for what repeats: three times as fast as Blosc itself, and no larger.
"""

import struct
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard

HEADER = struct.Struct("<4B3I")  # version, version of zstd's streams, flags, bytes of a value; decoded, block, encoded
VERSION, ZSTD_VERSION = 2, 1
SHUFFLED, ZSTD = 0x01, 4 << 5
# Of a stream this much tells whether it can be made shorter, and by less than that it is not worth the time.
PROBE_BYTES = 16 << 10
WORTHWHILE = 0.97
# Matches of 7 bytes, looked for in a table of 64 places: hardly any are found, and looking costs next to nothing.
ENTROPY_ONLY = zstandard.ZstdCompressionParameters(
    window_log=17, hash_log=6, chain_log=6, search_log=1, min_match=7, target_length=0, strategy=zstandard.STRATEGY_FAST
)
_compressors = threading.local()  # one a thread: they must not be shared


def block_rows(chunk_rows: int, row_bytes: int, block_bytes: int) -> int:
    """Return how many rows make a block: of `chunk_rows`, a power of two, halved until they fit `block_bytes`."""
    rows = chunk_rows
    while rows > 1 and rows * row_bytes > block_bytes:
        rows //= 2
    return rows


def split_planes(rows: npt.NDArray[Any], chunk_rows: int, block_bytes: int) -> npt.NDArray[np.uint8]:
    """Take the rows of an inner chunk apart.

    Args:
        rows: [at most chunk_rows, width], little-endian; zeros follow.
        chunk_rows: rows of the chunk, a power of two.
        block_bytes: of a block, at most, unless it is one row.

    Returns:
        uint8[blocks, bytes of a value, rows of a block, width].
    """
    num_rows, width = rows.shape
    size = rows.dtype.itemsize
    in_block = block_rows(chunk_rows, width * size, block_bytes)
    make = np.empty if num_rows == chunk_rows else np.zeros
    planes = make((chunk_rows // in_block, size, in_block, width), np.uint8)
    words = rows.view(f"<u{size}")
    for block, first in enumerate(range(0, num_rows, in_block)):
        part = words[first : first + in_block]
        for place in range(size):
            np.right_shift(part, 8 * place, out=planes[block, place, : len(part)], casting="unsafe")
    return planes


def encode_planes(planes: npt.NDArray[np.uint8], num_rows: int, *, has_repeats: bool) -> list[bytes | memoryview]:
    """Encode an inner chunk as the parts of a Blosc stream, some of them the planes themselves.

    Not joined: to copy megabytes holds the GIL, and up the thread that launches the forward with it.

    Args:
        planes: those of `split_planes`.
        num_rows: rows before the zeros.
        has_repeats: rows may be equal, as those of a token's embedding: such are looked for, as Blosc does.
    """
    num_blocks, size, in_block, width = planes.shape
    block_bytes = size * in_block * width
    end = HEADER.size + 4 * num_blocks
    starts: list[int] = []
    parts: list[bytes | memoryview] = []
    for block in range(num_blocks):
        starts.append(end)
        is_full = (block + 1) * in_block <= num_rows
        for plane in planes[block]:
            stream = _compress(plane.reshape(-1).data, probe=is_full and not has_repeats, search=has_repeats)
            parts += (len(stream).to_bytes(4, "little"), stream)
            end += 4 + len(stream)
    header = HEADER.pack(VERSION, ZSTD_VERSION, SHUFFLED | ZSTD, size, num_blocks * block_bytes, block_bytes, end)
    return [header, struct.pack(f"<{num_blocks}I", *starts), *parts]


def _compress(plane: memoryview, *, probe: bool, search: bool) -> bytes | memoryview:
    """Return a stream that is shorter than the plane, or the plane."""
    compressor = _compressor(search=search)
    if probe and len(plane) > PROBE_BYTES:
        tried = len(compressor.compress(plane[:PROBE_BYTES]))
        if tried > WORTHWHILE * PROBE_BYTES:
            return plane
    stream = compressor.compress(plane)
    return stream if len(stream) < len(plane) else plane


def _compressor(*, search: bool) -> zstandard.ZstdCompressor:
    if not hasattr(_compressors, "known"):
        _compressors.known = {
            True: zstandard.ZstdCompressor(level=1),
            False: zstandard.ZstdCompressor(compression_params=ENTROPY_ONLY),
        }
    found: zstandard.ZstdCompressor = _compressors.known[search]
    return found
