"""Make the small store of format version 1 that is kept beside this file, or another like it.

python tests/storage/stores/make_v1.py FOLDER

Run once, when version 1 was new. A later version must read what is kept, so do not make it again: add one for that
version.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage import StateSpec, TokensSpec, init_store
from storage.codecs import TOKENS_PER_CHUNK
from storage.findings import Finding
from storage.objects import ObjectWriter
from storage.pack_listing import open_packs
from storage.packs import Compaction
from storage.repairs import repair
from storage.store import add_spec
from storage.tokens import TokensWriter

SPEC = StateSpec(
    model_fingerprint="1" * 64,
    architecture="LlamaForCausalLM",
    num_layers=4,
    hidden_size=8,
    layers=(0, 3, "final"),
    compute_dtype="float32",
    storage_dtype="bfloat16",
    quantization=None,
    engine="test",
    engine_version="1",
    numerics={"attention_backend": "none"},
)
TOKENS_SPEC = TokensSpec(("2" * 64,), "3" * 64, "4" * 64, {"max_length": 300}, 1)
# By number of tokens, which differs.
LOOSE = (2, 257)
PACKED = (1, 256, 300)
MERGED = (3, 4)
REMOVED = 256


def make_ids(num_tokens: int) -> npt.NDArray[np.int32]:
    """Return the token ids of the sample of this length."""
    return (np.arange(num_tokens, dtype=np.int32) * 7919 + num_tokens) % 50_000


def make_states(num_tokens: int) -> npt.NDArray[np.uint16]:
    """Return its states, [num_tokens, 3, 8], as the bits of bfloat16 numbers of one to two."""
    count = num_tokens * SPEC.num_captured * SPEC.hidden_size
    bits = 0x3F80 + (np.arange(count, dtype=np.uint32) * 40_503 + num_tokens) // 512 % 128
    return bits.astype(np.uint16).reshape(num_tokens, SPEC.num_captured, SPEC.hidden_size)


def make_mask(num_tokens: int) -> npt.NDArray[np.uint8]:
    """Return its loss mask."""
    return (np.arange(num_tokens) % 3 > 0).astype(np.uint8)


def write(store: Path, lengths: tuple[int, ...]) -> None:
    """Write loose objects."""
    for num_tokens in lengths:
        ObjectWriter(store, SPEC).write(make_ids(num_tokens), make_states(num_tokens))


def main(store: Path) -> None:
    """Make a store that has one of each: loose objects, packs of both generations, a removal, a tokens artifact."""
    init_store(store)
    digest = add_spec(store, SPEC)
    shard_bytes = 2 * TOKENS_PER_CHUNK * SPEC.bytes_per_token
    for lengths in (MERGED[:1], MERGED[1:]):
        write(store, lengths)
        Compaction(store, SPEC, shard_bytes).pack_loose()
    Compaction(store, SPEC, shard_bytes).merge(open_packs(store, SPEC))
    write(store, PACKED)
    Compaction(store, SPEC, shard_bytes).pack_loose()
    for pack in open_packs(store, SPEC):
        for position in np.flatnonzero(pack.num_tokens == REMOVED).tolist():
            name = pack.name(position)
            repair(store, [Finding(name, "pack", "checksum", "", pack.pack_id, digest)])
    write(store, LOOSE)
    with TokensWriter(store, TOKENS_SPEC) as writer:
        for row, num_tokens in enumerate((*LOOSE, *PACKED, *MERGED, LOOSE[0])):
            writer.append(make_ids(num_tokens), make_mask(num_tokens), row, truncated=num_tokens == REMOVED)
        writer.reject("chats.jsonl", 9, 8, "empty", "no assistant turn")
        writer.commit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
