"""Lossy rows: states with fewer bits of mantissa or by a codec, and how far they are from what was given."""

from typing import Any

import numpy as np
import numpy.typing as npt

from storage.float8 import blocks
from storage.samples import RoundingError
from storage.specs import StateSpec
from storage.values import EXPONENT_BITS


def round_states(states: npt.NDArray[Any], spec: StateSpec) -> tuple[npt.NDArray[Any], RoundingError | None]:
    """Return what is stored of states [num_tokens, num_captured, hidden_size], given as their bits, and its error."""
    if spec.is_exact:
        return states, None
    codec = spec.dtype.codec
    rounded = round_mantissa(states, spec) if codec is None else codec.encode(states)
    return rounded, measure_error(states, rounded, spec)


def round_mantissa(bits: npt.NDArray[Any], spec: StateSpec) -> npt.NDArray[Any]:
    """Return finite values, given as their bits, with the spec's `mantissa_bits`: to nearest, ties to even.

    What would become infinite is rounded towards zero instead. All bits that are dropped are zero in the result.
    """
    dropped = spec.dtype.mantissa_bits - (spec.mantissa_bits or 0)
    word = bits.view(f"<u{bits.itemsize}")
    one = word.dtype.type(1)
    exponent = word.dtype.type(EXPONENT_BITS[spec.dtype.states])
    half = (one << (dropped - 1)) - one + ((word >> dropped) & one)
    mask = ~((one << dropped) - one)
    rounded = (word + half) & mask
    overflows = (rounded & exponent) == exponent
    return np.where(overflows, word & mask, rounded).view(bits.dtype)


def measure_error(given: npt.NDArray[Any], stored: npt.NDArray[Any], spec: StateSpec) -> RoundingError:
    """Compare states [num_tokens, num_captured, hidden_size], given as their bits, with what is stored of them."""
    errors = [_errors(_widen(given[block], spec), _widen(_read(stored[block], spec), spec)) for block in blocks(given)]
    every = np.concatenate(errors)
    # As float32, as packs keep them, so that they are the same wherever the sample lies.
    return RoundingError(float(every.max()), float(every.mean(dtype=np.float64).astype(np.float32)))


def _read(stored: npt.NDArray[Any], spec: StateSpec) -> npt.NDArray[Any]:
    if spec.dtype.codec is None:
        return stored
    read = np.empty((*stored.shape[:-1], spec.hidden_size), spec.dtype.bits)
    spec.dtype.codec.decode(read.reshape(-1, spec.hidden_size), stored.reshape(-1, spec.stored_width))
    return read


def _errors(given: npt.NDArray[np.float64], stored: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    norms = np.linalg.norm(given, axis=-1)
    errors: npt.NDArray[np.float64] = np.linalg.norm(given - stored, axis=-1) / np.where(norms == 0, 1, norms)
    return errors.astype(np.float32)


def _widen(values: npt.NDArray[Any], spec: StateSpec) -> npt.NDArray[np.float64]:
    # float64: the squares of the largest bfloat16 values have no float32.
    return spec.view_logical(values).astype(np.float64)
