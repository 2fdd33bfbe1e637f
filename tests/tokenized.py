"""Rows of chats as their token ids, for tests that need to know a sample before a run has made it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.inputs.base import Chunk
from tasks.row_tokenizer import RowTokenizer, Work
from tasks.token_options import TokenOptions
from tasks.tokenizer_sources import load_source


def ids_of(model: Path, rows: Sequence[str]) -> list[npt.NDArray[np.int32]]:
    """Return input_ids: int32[num_tokens] of each row, which must be a chat that is kept and not split."""
    tokenizer = RowTokenizer(load_source(model), TokenOptions(max_length=1 << 20))
    chunk = Chunk("\n".join(rows).encode(), 1, 0)
    return [outcome.samples[0].input_ids for outcome in tokenizer.tokenize(Work(chunk, "jsonl", "messages"))]
