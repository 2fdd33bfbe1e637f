"""Rows to token ids and to what of them is learnt."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from jinja2 import TemplateSyntaxError

from tasks.chats import Chat, Message, PlainText
from tasks.derivation import Derivation
from tasks.errors import TokenizerError
from tasks.masks import token_spans
from tasks.rejections import RowRejectedError
from tasks.supervision import AddedTokens, Rendered, Span
from tasks.templates import Template
from tasks.token_options import TokenOptions
from tasks.tokenizer_sources import TokenizerSource

TokenSpan = tuple[int, int, float]

# No token stands for more characters than it has itself, but for what a normalizer drops.
_DOUBT = 4


@dataclass(frozen=True)
class Encoded:
    """A sample as `input_ids: int32[num_tokens]`, and (first token, one past the last, weight) of what is learnt."""

    input_ids: npt.NDArray[np.int32]
    spans: Sequence[TokenSpan]


class ChatTokenizer:
    """Renders and encodes as a tokenizer and its templates say.

    Attributes:
        takes_parts: the chat template takes contents as lists of parts.
        vocab_size: one more than the highest token id.

    Raises:
        TokenizerError: the chat template has a mistake.
    """

    def __init__(self, source: TokenizerSource, options: TokenOptions) -> None:
        self._supervision = options.supervision
        self._backend, self._post_processor = source.backend, source.post_processor
        vocabulary = self._backend.get_vocab()
        self._added = {i: token.content for i, token in self._backend.get_added_tokens_decoder().items()}
        added = self._backend.get_added_tokens_decoder().values()
        self._tokens = AddedTokens(
            tuple(token.content for token in added), tuple(token.content for token in added if token.special)
        )
        self._most_characters = _DOUBT * options.max_length * max(map(len, vocabulary))
        self._cuts = options.too_long != "reject"
        self._max_length = options.max_length
        self._bos = source.special_tokens.get("bos_token") or None
        variables = {**source.special_tokens, **options.template_kwargs}
        self._template, self._tool_template = (
            _compile(text, variables, options.template_date) for text in (source.template, source.tool_template)
        )
        self.takes_parts = self._template.takes_parts
        self.vocab_size = max(vocabulary.values()) + 1

    def render(self, row: Chat | PlainText) -> list[Rendered]:
        """Render a row as one text, or as several where one cannot show all turns as they were written.

        Raises:
            RowRejectedError: `template_error`, `needs_date`, `unstable_template`, `invalid_unicode` or `too_long`.
        """
        samples = [_whole(row.text)] if isinstance(row, PlainText) else self._derive(row)
        return [self._shorten(sample) for sample in samples]

    def encode(self, samples: Sequence[Rendered]) -> list[Encoded]:
        """Encode texts together; a template has written all special tokens, so none is added."""
        texts = [sample.text for sample in samples if not sample.adds_special_tokens]
        encodings = iter(self._backend.encode_batch(texts, add_special_tokens=False))
        return [
            self._encode_plain(sample.text) if sample.adds_special_tokens else _encoded(next(encodings), sample)
            for sample in samples
        ]

    def decode(self, input_ids: npt.NDArray[np.int32]) -> str:
        """Return token ids as text, added tokens as they are written."""
        runs = groupby(input_ids.tolist(), key=self._added.get)
        return "".join(
            self._backend.decode(list(ids), skip_special_tokens=False) if token is None else token * len(list(ids))
            for token, ids in runs
        )

    @property
    def special_ids(self) -> frozenset[int]:
        """The ids of special tokens."""
        return frozenset(i for i, token in self._backend.get_added_tokens_decoder().items() if token.special)

    def _derive(self, chat: Chat) -> list[Rendered]:
        template = self._tool_template if chat.tools else self._template

        def render(messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
            return template.render(messages, chat.tools, add_generation_prompt=add_generation_prompt)

        def render_tracked(messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
            return template.render_tracked(messages, chat.tools)

        tracked = render_tracked if template.tracks else None
        return list(Derivation(chat.messages, render, self._supervision, self._tokens, tracked).samples())

    def _shorten(self, sample: Rendered) -> Rendered:
        """Refuse, or cut, what is too long beyond any doubt, before it is encoded."""
        _check_unicode(sample.text)
        if len(sample.text) <= self._most_characters:
            return sample
        if not self._cuts:
            limit = f"the limit is {self._max_length} tokens"
            raise RowRejectedError("too_long", f"it has {len(sample.text)} characters, {limit}")
        return Rendered(sample.text[: self._most_characters], sample.spans, sample.adds_special_tokens)

    def _encode_plain(self, text: str) -> Encoded:
        """Encode a text as an engine does that is given one: with the special tokens that the tokenizer adds."""
        has_bos = self._bos is not None and text.startswith(self._bos)
        self._backend.post_processor = self._post_processor
        encoding = self._backend.encode(text, add_special_tokens=not has_bos)
        self._backend.post_processor = None
        return Encoded(np.array(encoding.ids, np.int32), runs_of(1 - np.array(encoding.special_tokens_mask, np.uint8)))


def runs_of(mask: npt.NDArray[np.uint8]) -> list[TokenSpan]:
    """Return the runs of ones of a mask."""
    edges = np.flatnonzero(np.diff(mask, prepend=0, append=0).astype(bool)).tolist()
    return [(first, last, 1.0) for first, last in zip(edges[::2], edges[1::2], strict=True)]


def _encoded(encoding: Any, sample: Rendered) -> Encoded:
    return Encoded(np.array(encoding.ids, np.int32), token_spans(encoding, sample.text, sample.spans))


def _whole(text: str) -> Rendered:
    return Rendered(text, [Span(0, len(text))], adds_special_tokens=True)


def _compile(text: str, variables: dict[str, Any], date: str | None) -> Template:
    try:
        return Template(text, variables, date)
    except TemplateSyntaxError as error:
        raise TokenizerError(f"the chat template has a mistake in line {error.lineno} ({error}); correct it") from error


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowRejectedError("invalid_unicode", f"{text[error.start]!r} is an unpaired surrogate") from error
