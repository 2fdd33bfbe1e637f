"""States as rows of float8_e4m3fn, each followed by its scale, a little-endian float32; states are bits of bfloat16.

A state is its numbers times its scale, multiplied in float32 and rounded to bfloat16. The scale is the largest
magnitude of the state divided by 448, the largest number of float8_e4m3fn; it is 0 only for a state of zeros. All is
rounded to nearest, ties to even, so that torch computes the same bits.
"""

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

SCALE_BYTES = 4
LARGEST = np.float32(448)
SIGNLESS = np.uint8(0x7F)
# Values that are worked on at a time: bounds the memory of wider copies, and keeps these in the cache of a core.
BLOCK_VALUES = 1 << 16

Rows = npt.NDArray[np.uint8]
Bits = npt.NDArray[np.uint16]
Floats = npt.NDArray[np.float32]

with np.errstate(all="ignore"):
    # What each of the 256 numbers is, and what the upper half of each float32 is rounded to.
    _VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    _ROUNDED = (np.arange(1 << 16, dtype="<u4") << 16).view("<f4").astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def quantize(states: npt.NDArray[Any]) -> Rows:
    """Return finite states [num_tokens, num_captured, hidden_size] as rows of `hidden_size + SCALE_BYTES` bytes."""
    out = np.empty((*states.shape[:-1], states.shape[-1] + SCALE_BYTES), np.uint8)
    for block in blocks(states):
        _quantize(np.ascontiguousarray(states[block]), out[block])
    return out


def blocks(states: npt.NDArray[Any]) -> Iterator[slice]:
    """Cut states [num_tokens, num_captured, hidden_size] into pieces of some tokens, small ones."""
    num_tokens = max(1, BLOCK_VALUES // states[0].size)
    for first in range(0, len(states), num_tokens):
        yield slice(first, first + num_tokens)


def _quantize(states: Bits, out: Rows) -> None:
    scales = _widen((states & np.uint16(0x7FFF)).max(axis=-1, keepdims=True)) / LARGEST
    scaled = _widen(states)
    np.divide(scaled, np.where(scales == 0, np.float32(1), scales), out=scaled)
    halves = scaled.view("<u2").reshape(*states.shape, 2)
    # The lower half of a float32 decides no rounding but by being there: then the last bit of the upper one says so.
    # No index can be out of range; "clip" saves numpy the looking, half of the time.
    out[..., :-SCALE_BYTES] = _ROUNDED.take(halves[..., 1] | (halves[..., 0] != 0), mode="clip")
    out[..., -SCALE_BYTES:] = scales.astype("<f4", copy=False).view(np.uint8)


def dequantize(out: npt.NDArray[Any], rows: npt.NDArray[Any]) -> None:
    """Write the states of `rows` [n, hidden_size + SCALE_BYTES] into `out` uint16[n, hidden_size], each contiguous."""
    # A row can have 256 values: to round these and look them up takes a third of the time of rounding each number.
    with np.errstate(all="ignore"):  # of damaged rows
        tables = _narrow(_VALUES * _scales(rows)[:, None])
    for place, table, row in zip(out, tables, rows[:, :-SCALE_BYTES], strict=True):
        table.take(row, out=place, mode="clip")


def split(rows: Rows) -> tuple[npt.NDArray[Any], Floats]:
    """Return the numbers of rows [..., hidden_size + SCALE_BYTES], without a copy, and their scales float32[...]."""
    return rows[..., :-SCALE_BYTES].view(ml_dtypes.float8_e4m3fn), _scales(rows)


def largest_states(rows: Rows) -> Bits:
    """Return the bits of the largest magnitude of each state, infinity if one is not finite: uint16[n]."""
    with np.errstate(all="ignore"):
        largest = _VALUES[(rows[:, :-SCALE_BYTES] & SIGNLESS).max(axis=1)] * np.abs(_scales(rows))
    return _narrow(np.where(np.isfinite(largest), largest, np.float32(np.inf)))


def _scales(rows: npt.NDArray[Any]) -> Floats:
    return np.ascontiguousarray(rows[..., -SCALE_BYTES:]).view("<f4")[..., 0]


def _widen(bits: Bits) -> Floats:
    word = bits.astype("<u4")
    word <<= 16
    return word.view("<f4")


def _narrow(values: Floats) -> Bits:
    """Round to bfloat16; NaN stays one if it is that of a multiplication."""
    word = values.view("<u4")
    return ((word + np.uint32(0x7FFF) + ((word >> 16) & np.uint32(1))) >> 16).astype("<u2")
