"""The token ids that models are given: random ones for random weights, real chats for a model that was trained."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from models import SMOLLM2
from record import ROOT

from tasks.inputs.base import Chunk
from tasks.row_tokenizer import RowTokenizer, Work
from tasks.token_options import TokenOptions
from tasks.token_policies import Sample
from tasks.tokenizer_sources import load_source

Ids = npt.NDArray[np.int32]
CHATS = ROOT / "flows" / "data" / "mt_bench_smollm2.jsonl"
# Once all chats have begun a sequence, the next ones begin so many tokens later.
STRIDE = 64


def make_inputs(model: str, folder: Path, vocab_size: int, lengths: Sequence[int], seed: int) -> list[Ids]:
    """Return the sequences for a model of `models.NAMES`: input_ids: int32[n] for n in `lengths`; always the same."""
    if model != SMOLLM2:
        return draw(lengths, vocab_size, seed)
    return cut(read_chats(folder), lengths)


def draw(lengths: Sequence[int], vocab_size: int, seed: int) -> list[Ids]:
    """Draw random token ids, the same for the same arguments: input_ids: int32[n] for n in `lengths`."""
    random = np.random.default_rng(seed)
    return [random.integers(5, vocab_size, length).astype(np.int32) for length in lengths]


def read_chats(folder: Path) -> list[Ids]:
    """Return the chats that Aerie ships, as the model in `folder` sees them: input_ids: int32[num_tokens] each."""
    tokenizer = RowTokenizer(load_source(folder), TokenOptions(max_length=1 << 20))
    outcomes = tokenizer.tokenize(Work(Chunk(CHATS.read_bytes(), 1, 0), "jsonl", "messages"))
    return [sample.input_ids for outcome in outcomes for sample in outcome.samples if isinstance(sample, Sample)]


def cut(chats: Sequence[Ids], lengths: Sequence[int]) -> list[Ids]:
    """Cut sequences from chats: each begins where a chat does, and runs on into the next ones if it is longer."""
    text = np.concatenate([*chats, *chats])
    starts = np.cumsum([0, *map(len, chats)])
    return [
        text[start : start + length]
        for number, length in enumerate(lengths)
        for start in [starts[number % len(chats)] + STRIDE * (number // len(chats))]
    ]


def find_first(sequences: Sequence[Ids]) -> list[npt.NDArray[np.bool_]]:
    """Say which tokens come after something new, and so have a state of their own: bool[n] for each sequence.

    Chats begin alike, and the first token of a trained model's chat has a state larger than thousands of others: what
    its rounding happens to be would count once a chat.
    """
    seen: set[bytes] = set()
    firsts = []
    for ids in sequences:
        prefix = hashlib.sha256()
        digests = []
        for token in ids:
            prefix.update(token.tobytes())
            digests.append(prefix.digest())
        firsts.append(np.array([digest not in seen for digest in digests]))
        seen.update(digests)
    return firsts
