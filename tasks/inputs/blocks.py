"""The bytes of a text file, block by block: as it is, or unpacked from gzip or Zstandard."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tasks.inputs.base import BLOCK_BYTES

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
# A frame may ask for a window of this size to be kept; `zstd --ultra --long=27` and below.
_MAX_WINDOW_BYTES = 1 << 27
# That are unpacked at a time: of zeros, they become 33 MB.
_PACKED_BYTES = 1 << 10


class BrokenStreamError(Exception):
    """Compressed bytes end too early or are damaged; what came before has been given."""


def read_blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Read a file of text; give each block, and how many bytes of the file have been read with it.

    Raises:
        BrokenStreamError: it is compressed, and cut off or damaged.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        start = file.read(len(ZSTD))
        file.seek(0)
        unpack = _gzip_blocks if start.startswith(GZIP) else _zstd_blocks if start == ZSTD else _plain_blocks
        for block in _joined(unpack(file)):
            yield block, file.tell()


def _joined(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Put pieces together to blocks: a line is added to for each of them, and they may be of a byte each."""
    block: list[bytes] = []
    size = 0
    try:
        for piece in pieces:
            block.append(piece)
            size += len(piece)
            if size >= BLOCK_BYTES:
                yield b"".join(block)
                block, size = [], 0
    except BrokenStreamError:
        if block:
            yield b"".join(block)
        raise
    if block:
        yield b"".join(block)


def _plain_blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK_BYTES):
        yield block


def _gzip_blocks(file: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
        while True:
            try:
                # read1, since read loses what came before an error.
                block = unpacked.read1(BLOCK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise BrokenStreamError(str(error)) from error
            if not block:
                return
            yield block


def _zstd_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Unpack frame after frame; zstandard's own reader of streams takes one that is cut off for whole."""
    import zstandard  # noqa: PLC0415 - hardly ever needed

    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    frame, rest = decompressor.decompressobj(), b""
    is_open = False
    while packed := rest or file.read(_PACKED_BYTES):
        try:
            block = frame.decompress(packed)
        except zstandard.ZstdError as error:
            raise BrokenStreamError(str(error)) from error
        is_open, rest = not frame.eof, frame.unused_data
        if frame.eof:
            frame = decompressor.decompressobj()
        if block:
            yield block
    if is_open:
        raise BrokenStreamError("the last frame is not complete")
