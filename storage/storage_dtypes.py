"""The storage dtypes: as what states are given and read under each, and what lies on disk for them."""

from typing import Any, NamedTuple

import numpy as np

FLOAT8 = "float8_e4m3fn"


class StorageDtype(NamedTuple):
    """One of them.

    Attributes:
        states: the dtype in which states are given and read.
        bits: the numpy dtype of these in memory; uint16 for bfloat16, which numpy lacks.
        stored: the dtype of an element on disk. Zarr v3 has neither bfloat16 nor float8: their bits are stored.
        scale_bytes: bytes on disk after the elements of each row: its scale.
        mantissa_bits: explicit bits of a value's mantissa, of which a spec may store fewer; 0 if it may not.
    """

    states: str
    bits: np.dtype[Any]
    stored: np.dtype[Any]
    scale_bytes: int
    mantissa_bits: int


_U1, _U2, _F2, _F4 = (np.dtype(name) for name in ("u1", "<u2", "<f2", "<f4"))

STORAGE_DTYPES: dict[str, StorageDtype] = {
    "bfloat16": StorageDtype("bfloat16", _U2, _U2, 0, 7),
    "float16": StorageDtype("float16", _F2, _F2, 0, 10),
    "float32": StorageDtype("float32", _F4, _F4, 0, 23),
    FLOAT8: StorageDtype("bfloat16", _U2, _U1, _F4.itemsize, 0),
}
