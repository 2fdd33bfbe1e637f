"""The model's own tokenizer and chat template, without code from the model folder and without a network."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from tasks.chats import Chat, Message, RowRejectedError
from tasks.errors import TokenizerError
from tasks.masks import Span, assistant_spans, loss_mask

# As transformers looks for it (utils/chat_template_utils.py of 5.12.1).
_GENERATION_TAG = re.compile(r"\{\%-?\s*generation\s*-?\%\}")

# No token stands for more characters than it has itself, but for what a normalizer drops.
_DOUBT = 4


@dataclass(frozen=True)
class Rendered:
    """A chat as text, and the character spans that the assistant wrote."""

    text: str
    spans: Sequence[Span]


@dataclass(frozen=True)
class Encoded:
    """A chat as `input_ids: int32[num_tokens]` and `loss_mask: uint8[num_tokens]`, and whether it was cut."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]
    truncated: bool = False


class ChatTokenizer:
    """The tokenizer of a model folder.

    Raises:
        TokenizerError: the folder's tokenizer cannot be loaded, or needs code of its own.
    """

    def __init__(self, model: Path) -> None:
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
            self._backend = self._tokenizer.backend_tokenizer
            self._tokenizer.get_chat_template()
        except Exception as error:
            problem = " ".join(str(error).split())
            raise TokenizerError(
                f"the tokenizer of {model} cannot be loaded ({problem}); it must have a chat template, and a "
                "tokenizer.json that transformers reads without code from the model folder"
            ) from error
        # tokenizer.json may carry either; a sample is neither cut nor padded but by our own policy.
        self._backend.no_truncation()
        self._backend.no_padding()
        self._longest_token = max(map(len, self._backend.get_vocab()))
        self._special_tokens = tuple(self._tokenizer.get_added_vocab())

    def render(self, chat: Chat) -> Rendered:
        """Render a chat by the model's template and find the assistant's spans, by {% generation %} tags if it has any.

        Raises:
            RowRejectedError: `template_error`, `unstable_template` or `invalid_unicode`.
        """
        template = self._tokenizer.get_chat_template(tools=chat.tools)
        tracked = _GENERATION_TAG.search(template) is not None

        def render(messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
            return self._render(template, chat, messages, add_generation_prompt=add_generation_prompt)[0]

        text, spans = self._render(template, chat, chat.messages, tracked=tracked)
        _check_unicode(text)
        return Rendered(text, spans if tracked else assistant_spans(chat.messages, text, render, self._special_tokens))

    def is_surely_longer(self, text: str, num_tokens: int) -> bool:
        """Say whether a text is longer than `num_tokens` tokens beyond any doubt, without encoding it."""
        return len(text) > _DOUBT * num_tokens * self._longest_token

    def encode(self, chats: Sequence[Rendered]) -> list[Encoded]:
        """Encode texts together, on all cores; the template has written all special tokens, so none is added."""
        encodings = self._backend.encode_batch([chat.text for chat in chats], add_special_tokens=False)
        return [_encoded(encoding, chat) for encoding, chat in zip(encodings, chats, strict=True)]

    def _render(
        self,
        template: str,
        chat: Chat,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tracked: bool = False,
    ) -> tuple[str, list[Span]]:
        try:
            [text], spans = render_jinja_template(
                conversations=[messages],
                tools=chat.tools,
                chat_template=template,
                return_assistant_tokens_mask=tracked,
                add_generation_prompt=add_generation_prompt,
                **self._tokenizer.special_tokens_map,
            )
        # A template is a program of the model's: on odd messages it may raise anything.
        except Exception as error:
            raise RowRejectedError(
                "template_error", f"{type(error).__name__}: {' '.join(str(error).split())}"
            ) from error
        return text, spans[0] if tracked else []


def _encoded(encoding: Any, chat: Rendered) -> Encoded:
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    return Encoded(np.array(encoding.ids, np.int32), loss_mask(offsets, chat.spans))


def _check_unicode(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowRejectedError("invalid_unicode", f"{text[error.start]!r} is an unpaired surrogate") from error
