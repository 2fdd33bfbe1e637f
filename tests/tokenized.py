"""Rows of chats as their token ids: those of one row, as a run would make them, and whole artifacts."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from storage.tokens import Tokens
from tasks.inputs.base import Chunk
from tasks.row_tokenizer import RowTokenizer, Work
from tasks.token_options import TokenOptions
from tasks.tokenization import tokenize_chats
from tasks.tokenizer_sources import load_source
from tasks.tokens_specs import make_tokens_spec

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, you."}]}

ANSWER = {"role": "assistant", "content": "a"}

LIMITS = {"max_length": 8192}


def ids_of(model: Path, rows: Sequence[str]) -> list[npt.NDArray[np.int32]]:
    """Return input_ids: int32[num_tokens] of each row, which must be a chat that is kept and not split."""
    tokenizer = RowTokenizer(load_source(model), TokenOptions(max_length=1 << 20))
    chunk = Chunk("\n".join(rows).encode(), 1, 0)
    return [outcome.samples[0].input_ids for outcome in tokenizer.tokenize(Work(chunk, "jsonl", "messages"))]


def tokenize(
    root: Path,
    model: Path,
    *data: Path,
    workers: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
    **chosen: Any,
) -> Tokens:
    """Make the tokens artifact of data files, with `LIMITS` and what is chosen else."""
    options = TokenOptions(**LIMITS | chosen)
    spec = make_tokens_spec(model, data, options)
    return tokenize_chats(root, spec, model, data, options=options, workers=workers, on_progress=on_progress)


def digest(model: Path, *data: Path, **limits: Any) -> str:
    """Return the digest of that artifact."""
    return make_tokens_spec(model, data, TokenOptions(**(LIMITS | limits))).digest()


def files_of(folder: Path) -> dict[Path, bytes]:
    """Return what the files of a folder hold."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def decode(model: Path, ids: Sequence[int]) -> str:
    """Return the text of tokens by the model's tokenizer."""
    from transformers import AutoTokenizer

    return str(AutoTokenizer.from_pretrained(model).decode(ids))
