"""The storage dtypes: as what states are given and read under each, and what lies on disk for them; one is one row."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from storage.float8 import dequantize, largest_states, quantize

FLOAT8 = "float8_e4m3fn"
Array = npt.NDArray[Any]


class RowCodec(NamedTuple):
    """How states become rows of other numbers, and these states again, each by itself.

    States are given as their bits. A row has `stored_width` elements of the dtype on disk, the scale included.

    Attributes:
        encode: finite states [num_tokens, num_captured, hidden_size] to rows [num_tokens, num_captured, stored_width].
        decode: writes the states of rows [n, stored_width] into [n, hidden_size], both contiguous.
        largest: the largest magnitude of each of these states, infinity if one of its values is not finite: bits [n].
    """

    encode: Callable[[Array], Array]
    decode: Callable[[Array, Array], None]
    largest: Callable[[Array], Array]


class StorageDtype(NamedTuple):
    """One of them.

    Attributes:
        states: the dtype in which states are given and read.
        bits: the numpy dtype of these in memory; uint16 for bfloat16, which numpy lacks.
        stored: the dtype of an element on disk. Zarr v3 has neither bfloat16 nor float8: their bits are stored.
        scale_bytes: bytes on disk after the elements of each row: its scale.
        mantissa_bits: explicit bits of a value's mantissa, of which a spec may store fewer; 0 if it may not.
        codec: what makes the rows on disk of states, and loses something; None where they are the states themselves.
    """

    states: str
    bits: np.dtype[Any]
    stored: np.dtype[Any]
    scale_bytes: int
    mantissa_bits: int
    codec: RowCodec | None = None


_U1, _U2, _F2, _F4 = (np.dtype(name) for name in ("u1", "<u2", "<f2", "<f4"))

STORAGE_DTYPES: dict[str, StorageDtype] = {
    "bfloat16": StorageDtype("bfloat16", _U2, _U2, 0, 7),
    "float16": StorageDtype("float16", _F2, _F2, 0, 10),
    "float32": StorageDtype("float32", _F4, _F4, 0, 23),
    FLOAT8: StorageDtype("bfloat16", _U2, _U1, _F4.itemsize, 0, RowCodec(quantize, dequantize, largest_states)),
}
