"""The largest things that a store may hold: what says that it is larger is refused before memory is taken for it."""

from typing import TypeGuard

# A zarr.json, a spec or the header; that of a tokens artifact grows with the number of data files.
MAX_DOCUMENT_BYTES = 16 << 20
# Of one sample; the longest contexts of today have 10 million.
MAX_TOKENS = 1 << 24
# Blocks of a model.
MAX_LAYERS = 1 << 16
# Values of a state: an inner chunk of float32 is then 256 MiB, far below the 2 GiB of a Blosc stream.
MAX_HIDDEN_SIZE = 1 << 18
# Of an array; no number of bytes that is computed from it wraps.
MAX_ROWS = 1 << 40
MAX_CHECKSUM = (1 << 32) - 1


def is_number(value: object, most: int, least: int = 0) -> TypeGuard[int]:
    """Say whether what a document has is an integer, and none of JSON's other numbers, within bounds."""
    return type(value) is int and least <= value <= most
