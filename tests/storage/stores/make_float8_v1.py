"""Make the small store of float8 states that is kept beside this file, or another like it.

python tests/storage/stores/make_float8_v1.py FOLDER

Run once, when format version 1 got them. A later version must read what is kept, so do not make it again.
"""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt

from storage import StateSpec, init_store
from storage.objects import ObjectWriter
from storage.packs import compact
from storage.store import add_spec

SPEC = StateSpec(
    model_fingerprint="1" * 64,
    architecture="LlamaForCausalLM",
    num_layers=4,
    hidden_size=8,
    layers=(0, "final"),
    compute_dtype="bfloat16",
    storage_dtype="float8_e4m3fn",
    quantization=None,
    engine="test",
    engine_version="1",
    numerics={"attention_backend": "none"},
)
# By number of tokens, which differs.
LOOSE, PACKED = 2, 257


def make_ids(num_tokens: int) -> npt.NDArray[np.int32]:
    """Return the token ids of the sample of this length."""
    return (np.arange(num_tokens, dtype=np.int32) * 7919 + num_tokens) % 50_000


def make_states(num_tokens: int) -> npt.NDArray[np.uint16]:
    """Return its states, [num_tokens, 2, 8], as bits of bfloat16: of many sizes and both signs, the first of zeros."""
    numbers = np.arange(num_tokens * SPEC.num_captured * SPEC.hidden_size, dtype=np.uint32) * 40_503 % 60_000
    bits = (0x3A00 + numbers % 0x700 + numbers // 30_000 * 0x8000).astype(np.uint16)
    states = bits.reshape(num_tokens, SPEC.num_captured, SPEC.hidden_size)
    states[0, 0] = 0
    return states


def read_again(states: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Return what is read of states, computed as the page of the format says, but by other code than the store's."""
    given = states.view(ml_dtypes.bfloat16).astype(np.float32)
    scales = np.abs(given).max(axis=-1, keepdims=True) / np.float32(448)
    values = (given / np.where(scales == 0, np.float32(1), scales)).astype(ml_dtypes.float8_e4m3fn)
    return (values.astype(np.float32) * scales).astype(ml_dtypes.bfloat16).view(np.uint16)


def main(store: Path) -> None:
    """Make a store that has a pack and a loose object."""
    init_store(store)
    digest = add_spec(store, SPEC)
    for num_tokens in (PACKED, LOOSE):
        ObjectWriter(store, SPEC).write(make_ids(num_tokens), make_states(num_tokens))
        if num_tokens == PACKED:
            compact(store, digest)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
