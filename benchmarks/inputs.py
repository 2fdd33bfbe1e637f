"""The token ids that models are given: random ones for random weights, real chats for a model that was trained."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from models import SMOLLM2
from record import ROOT

from tasks.chat_tokenizer import ChatTokenizer
from tasks.chats import parse_chat

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
    tokenizer = ChatTokenizer(folder)
    chats = [tokenizer.render(parse_chat(row)) for row in CHATS.read_bytes().splitlines()]
    return [chat.input_ids for chat in tokenizer.encode(chats)]


def cut(chats: Sequence[Ids], lengths: Sequence[int]) -> list[Ids]:
    """Cut sequences from chats: each begins where a chat does, and runs on into the next ones if it is longer."""
    text = np.concatenate([*chats, *chats])
    starts = np.cumsum([0, *map(len, chats)])
    return [
        text[start : start + length]
        for number, length in enumerate(lengths)
        for start in [starts[number % len(chats)] + STRIDE * (number // len(chats))]
    ]
