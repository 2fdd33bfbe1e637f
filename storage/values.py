"""Faults in the values of hidden states, found on their bits: not finite, zero, rows where none should be."""

from typing import Any

import numpy as np
import numpy.typing as npt

from storage.codecs import TOKENS_PER_CHUNK
from storage.errors import AllZeroError, NonFiniteError, RowCountError
from storage.specs import StateSpec

# All exponent bits set is an infinity or a NaN; every finite magnitude is below.
EXPONENT_BITS = {"bfloat16": 0x7F80, "float16": 0x7C00, "float32": 0x7F800000}
MAGNITUDE_BITS = {2: 0x7FFF, 4: 0x7FFFFFFF}


class ValueCheck:
    """Check the decoded inner chunks of one sample, in C order.

    Args:
        spec: gives dtype and layers.
        num_tokens: rows of the sample; those after it in its last chunk are padding.
    """

    def __init__(self, spec: StateSpec, num_tokens: int) -> None:
        self._spec = spec
        self._num_tokens = num_tokens
        self._is_zero = [True] * spec.num_captured

    def check(self, chunk: int, slot: int, values: npt.NDArray[Any]) -> None:
        """Check one inner chunk [TOKENS_PER_CHUNK, stored_width].

        Raises:
            RowCountError, NonFiniteError, AllZeroError: as their names say.
        """
        layer = self._spec.layers[slot]
        first = chunk * TOKENS_PER_CHUNK
        used, padding = np.split(values, [self._num_tokens - first])
        if padding.any():
            raise RowCountError(f"layer {layer} has states after its last token {self._num_tokens - 1}")
        codec = self._spec.dtype.codec
        rows = largest_bits(used) if codec is None else codec.largest(used)
        bad = np.flatnonzero(rows >= EXPONENT_BITS[self._spec.dtype.states])
        if len(bad):
            raise NonFiniteError(
                f"layer {layer} has NaN or infinity in {len(bad)} tokens, the first is {first + bad[0]}"
            )
        # An embedding may be zero (that of a padding token), a state after a block may not.
        zero = np.flatnonzero(rows == 0)
        if len(zero) and layer != 0:
            raise AllZeroError(
                f"layer {layer} is zero throughout in {len(zero)} tokens, the first is {first + zero[0]}"
            )
        self._is_zero[slot] &= len(zero) == len(rows)

    def finish(self) -> None:
        """Check what only all chunks together show.

        Raises:
            AllZeroError: a layer is zero in all tokens.
        """
        for layer, is_zero in zip(self._spec.layers, self._is_zero, strict=True):
            if is_zero:
                raise AllZeroError(f"layer {layer} is zero throughout in all {self._num_tokens} tokens")


def largest_bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return, for each row of `values` [rows, hidden_size], the largest bit pattern without its sign: [rows]."""
    itemsize = values.dtype.itemsize
    bits = values.view(f"<u{itemsize}")
    largest: npt.NDArray[Any] = (bits & bits.dtype.type(MAGNITUDE_BITS[itemsize])).max(axis=1)
    return largest
