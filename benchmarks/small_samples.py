"""Small samples by number, and stores of them: for work that is killed and files that are damaged."""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from storage import StateSpec, TokensSpec, open_store, open_tokens
from storage.checks import check_store
from storage.digests import sample_hash
from storage.file_checks import check_files, check_header
from storage.findings import Finding
from storage.layout import loose_hashes
from storage.objects import ObjectWriter
from storage.pack_listing import live_positions, open_packs
from storage.packs import Compaction
from storage.paths import StorePath
from storage.store import add_spec, init_store, spec_digests
from storage.tokens import TokensWriter

SPEC = StateSpec("f" * 64, "LlamaForCausalLM", 8, 48, (2, 5, "final"), "float32", "bfloat16", None, "test", "1")
DIGEST = SPEC.digest()
TOKENS_SPEC = TokensSpec(("d" * 64,), "t" * 64, "c" * 64)
SHARD_BYTES = 512 * SPEC.bytes_per_token
LENGTHS = (60, 300, 1, 700, 256)


@cache
def make_sample(number: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint16]]:
    """Return token ids and states, the bits of bfloat16; of one to 700 tokens."""
    rng = np.random.default_rng(number)
    num_tokens = LENGTHS[number % len(LENGTHS)]
    values = rng.normal(size=(num_tokens, SPEC.num_captured, SPEC.hidden_size)).astype(np.float32)
    return rng.integers(0, 50_000, num_tokens, dtype=np.int32), (values.view(np.uint32) >> 16).astype(np.uint16)


@cache
def name_of(number: int) -> str:
    """Return the sample hash."""
    return sample_hash(make_sample(number)[0])


def make_store(store: Path) -> None:
    """Make an empty store."""
    init_store(store)
    add_spec(store, SPEC)


def write_samples(store: Path, numbers: Iterable[int]) -> None:
    """Write those samples that the store lacks as loose objects."""
    there = set(open_store(store, DIGEST))
    for number in numbers:
        if name_of(number) not in there:
            ObjectWriter(store, SPEC).write(*make_sample(number))


def pack_samples(store: Path, numbers: Iterable[int]) -> None:
    """Write samples as one more pack."""
    write_samples(store, numbers)
    Compaction(store, SPEC, SHARD_BYTES).pack_loose()


def name_samples(store: Path, numbers: Iterable[int]) -> None:
    """Write the tokens artifact, which names samples, if there is none."""
    if open_tokens(store, TOKENS_SPEC.digest()) is not None:
        return
    with TokensWriter(store, TOKENS_SPEC) as writer:
        for row, number in enumerate(numbers):
            ids = make_sample(number)[0]
            writer.append(ids, np.ones(len(ids), np.uint8), row)
        writer.reject("chats.jsonl", 3, 99, "empty", "no assistant turn")
        writer.commit()


def find_all(store: Path) -> list[Finding]:
    """Check everything, as `aerie validate` does."""
    header = check_header(store)
    if header:
        return header
    findings = check_files(store)
    bad = {finding.digest for finding in findings if finding.where == "spec"}
    for digest in spec_digests(store):
        findings += [] if digest in bad else check_store(store, digest).findings
    return findings


def count_copies(store: Path) -> int:
    """Return how many copies of samples count, loose and packed."""
    packed = sum(len(live_positions(store, DIGEST, pack)) for pack in open_packs(store, SPEC))
    return packed + sum(1 for _ in loose_hashes(store, DIGEST))


def damage(file: StorePath, position: int) -> None:
    """Flip a bit of a file."""
    assert isinstance(file, Path)  # noqa: S101 - of a store on a file system
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)
