"""A few rows as what becomes of them: which tokens are learnt, which are special, and what is rejected."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from tasks.chat_tokenizer import ChatTokenizer
from tasks.data_reading import read_all
from tasks.rejections import RowRejectedError
from tasks.row_tokenizer import RowTokenizer, Work
from tasks.token_options import TokenOptions
from tasks.token_policies import Sample
from tasks.tokenizer_sources import load_source


@dataclass(frozen=True)
class Piece:
    """Tokens that follow each other and are treated alike, as text; `weight` is 0 where nothing is learnt."""

    text: str
    weight: float
    is_special: bool


@dataclass(frozen=True)
class Preview:
    """One sample of a row, or why there is none.

    Attributes:
        file: short name of the file.
        line: number of the row's line or row in it.
        part: which of the samples of the row, from 1.
        num_parts: how many samples the row became.
        num_tokens: of the sample.
        num_supervised: those of them that are learnt.
        pieces: the sample as text.
        rejected: reason and cure, if it is rejected.
    """

    file: str
    line: int
    part: int
    num_parts: int
    num_tokens: int
    num_supervised: int
    pieces: tuple[Piece, ...]
    rejected: str | None = None


def preview_rows(model: Path, data: Sequence[Path], options: TokenOptions, *, skip: int = 0) -> Iterator[Preview]:
    """Tokenize rows one chunk after the other, in their order, and show each; policies over all rows do not apply.

    Args:
        model: whose tokenizer it is.
        data: the files.
        options: what is made of them.
        skip: rows to leave out at the beginning.

    Raises:
        DataError: a file cannot be read.
        TokenizerError: the tokenizer cannot be loaded.
    """
    source = load_source(model, options.chat_template)
    tokenizer, decoder = RowTokenizer(source, options), ChatTokenizer(source, options)
    number = 0
    for mark, work in read_all(data, options):
        for outcome in tokenizer.tokenize(work) if isinstance(work, Work) else work:
            number += 1
            if number <= skip:
                continue
            for part, sample in enumerate(outcome.samples, start=1):
                place = mark.file, outcome.line, part, len(outcome.samples)
                if isinstance(sample, RowRejectedError):
                    yield Preview(*place, 0, 0, (), rejected=str(sample))
                else:
                    pieces = tuple(_pieces(sample, decoder))
                    yield Preview(*place, len(sample.input_ids), int(sample.loss_mask.sum()), pieces)


def _pieces(sample: Sample, decoder: ChatTokenizer) -> Iterator[Piece]:
    special = decoder.special_ids
    kinds = [
        (weight, token in special)
        for token, weight in zip(sample.input_ids.tolist(), sample.loss_weight.tolist(), strict=True)
    ]
    start = 0
    for (weight, is_special), run in groupby(kinds):
        stop = start + len(list(run))
        yield Piece(decoder.decode(sample.input_ids[start:stop]), weight, is_special)
        start = stop
