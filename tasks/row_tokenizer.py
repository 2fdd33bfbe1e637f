"""Rows to samples, in any process: each row by itself, so that neither its neighbours nor its process matter."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.chat_tokenizer import ChatTokenizer, Encoded, runs_of
from tasks.chats import Row, TokenRow
from tasks.inputs.base import Chunk, Record
from tasks.inputs.formats import Format, reader_of
from tasks.inputs.shapes import ShapeName, read_row
from tasks.rejections import RowRejectedError
from tasks.supervision import Rendered
from tasks.token_options import TokenOptions
from tasks.token_policies import Sample, fit_sample, is_sampled
from tasks.tokenizer_sources import TokenizerSource

# Of a rejected row, when its content is asked for.
_CONTENT_CHARACTERS = 100_000


@dataclass(frozen=True)
class Work:
    """A chunk of a file, and how it is read."""

    chunk: Chunk
    format: Format
    shape: ShapeName


@dataclass
class Outcome:
    """What became of one row: its samples, mostly one, or why it or one of them is rejected.

    Attributes:
        line: number of the row's line or row in its file.
        samples: in the order of the turns that they teach.
        content: the row, where it was asked for and something of it is rejected.
    """

    line: int
    samples: list[Sample | RowRejectedError] = field(default_factory=list)
    content: str | None = None


class RowTokenizer:
    """Tokenizes the rows of chunks as the options say."""

    def __init__(self, source: TokenizerSource, options: TokenOptions) -> None:
        self._options = options
        self._tokenizer = ChatTokenizer(source, options)

    def tokenize(self, work: Work) -> list[Outcome]:
        """Return the outcome of each row, in order."""
        records = list(reader_of(work.format).records(work.chunk))
        rendered = [self._render(record, work.shape) for record in records]
        texts = [text for samples in rendered if isinstance(samples, list) for text in samples]
        encoded = iter(self._tokenizer.encode(texts))
        return [
            self._outcome(record, self._collect(samples, encoded))
            for record, samples in zip(records, rendered, strict=True)
        ]

    def _render(self, record: Record, shape: ShapeName) -> list[Rendered] | Encoded | RowRejectedError:
        try:
            row = self._read(record, shape)
            return self._take_tokens(row) if isinstance(row, TokenRow) else self._tokenizer.render(row)
        except RowRejectedError as error:
            return error

    def _read(self, record: Record, shape: ShapeName) -> Row:
        if isinstance(record.value, RowRejectedError):
            raise record.value
        row = read_row(record.value, shape, self._options.shape, content_parts=self._tokenizer.takes_parts)
        if not is_sampled(row, self._options):
            raise RowRejectedError("not_sampled")
        return row

    def _take_tokens(self, row: TokenRow) -> Encoded:
        if len(row.input_ids) and row.input_ids.max() >= self._tokenizer.vocab_size:
            raise RowRejectedError(
                "bad_tokens", f"it has id {row.input_ids.max()}, the vocabulary has {self._tokenizer.vocab_size}"
            )
        return Encoded(row.input_ids, runs_of(row.loss_mask))

    def _collect(
        self, rendered: list[Rendered] | Encoded | RowRejectedError, encoded: Iterator[Encoded]
    ) -> list[Sample | RowRejectedError]:
        if isinstance(rendered, RowRejectedError):
            return [rendered]
        parts = [rendered] if isinstance(rendered, Encoded) else [next(encoded) for _ in rendered]
        return [self._fit(part) for part in reversed(parts)]

    def _fit(self, encoded: Encoded) -> Sample | RowRejectedError:
        try:
            return fit_sample(encoded, self._options)
        except RowRejectedError as error:
            return error

    def _outcome(self, record: Record, samples: list[Sample | RowRejectedError]) -> Outcome:
        is_rejected = any(isinstance(sample, RowRejectedError) for sample in samples)
        content = _content(record) if is_rejected and self._options.reject_content else None
        return Outcome(record.line, samples, content)


def _content(record: Record) -> str:
    if record.raw is not None:
        return record.raw.decode("utf-8", "replace")[:_CONTENT_CHARACTERS]
    return json.dumps(record.value, default=str)[:_CONTENT_CHARACTERS]


def pack(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Put outcomes into few large arrays, which cross to another process in a tenth of the time of many small ones."""
    samples = [sample for outcome in outcomes for sample in outcome.samples if isinstance(sample, Sample)]
    return {
        "ids": np.concatenate([s.input_ids for s in samples]) if samples else None,
        "weights": np.concatenate([s.loss_weight for s in samples]) if samples else None,
        "outcomes": [
            (o.line, o.content, [(len(s.input_ids), s.truncated) if isinstance(s, Sample) else s for s in o.samples])
            for o in outcomes
        ],
    }


def unpack(packed: dict[str, Any]) -> Iterator[Outcome]:
    """Return what `pack` was given."""
    start = 0
    for line, content, parts in packed["outcomes"]:
        outcome = Outcome(line, content=content)
        for part in parts:
            if isinstance(part, RowRejectedError):
                outcome.samples.append(part)
                continue
            rows = slice(start, start := start + part[0])
            outcome.samples.append(Sample(packed["ids"][rows], packed["weights"][rows], part[1]))
        yield outcome
