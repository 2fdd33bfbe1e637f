"""What is learnt of a row, as text, by way of token ids and masks."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from chat_templates import make_source

from tasks.chat_tokenizer import ChatTokenizer, runs_of
from tasks.inputs.base import Chunk
from tasks.rejections import RowRejectedError
from tasks.row_tokenizer import Outcome, RowTokenizer, Work
from tasks.token_options import TokenOptions

Supervised = list[list[str] | str]


def supervised(family: str, model: Path, row: Any, **options: Any) -> Supervised:
    """Return, for each sample of a row, its runs of learnt tokens as text, or the reason why it is rejected."""
    decoder = _make_decoder(family, model)
    return [
        sample.reason
        if isinstance(sample, RowRejectedError)
        else [decoder.decode(sample.input_ids[first:last]) for first, last, _ in runs_of(sample.loss_mask)]
        for sample in tokenize_row(family, model, row, **options).samples
    ]


def tokenize_row(family: str, model: Path, row: Any, **options: Any) -> Outcome:
    """Return the outcome of one row of messages."""
    tokenizer = _make_default(family, model) if not options else RowTokenizer(*_parts(family, model, **options))
    [outcome] = tokenizer.tokenize(Work(Chunk(json.dumps(row).encode(), 1, 0), "jsonl", "messages"))
    return outcome


def _parts(family: str, model: Path, **options: Any) -> tuple[Any, TokenOptions]:
    return make_source(family, model), TokenOptions(**{"max_length": 8192, "template_date": "2026-11-30"} | options)


@cache
def _make_default(family: str, model: Path) -> RowTokenizer:
    return RowTokenizer(*_parts(family, model))


@cache
def _make_decoder(family: str, model: Path) -> ChatTokenizer:
    return ChatTokenizer(*_parts(family, model))
