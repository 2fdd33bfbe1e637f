"""The model's own tokenizer and chat template, without code from the model folder and without a network."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tasks.errors import TokenizerError


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer and its templates; it may be pickled.

    Attributes:
        backend: the tokenizer, which neither cuts nor pads nor adds special tokens: templates write them. Without its
            post-processor it does not trim the offsets of tokens with white space either.
        post_processor: which adds the special tokens of plain texts, if there are any.
        template: of chats without tools.
        tool_template: of chats with tools.
        special_tokens: such as `bos_token`, as templates name them.
    """

    backend: Tokenizer
    post_processor: Any
    template: str
    tool_template: str
    special_tokens: dict[str, Any]


def load_source(model: Path, chat_template: Path | None = None) -> TokenizerSource:
    """Load the tokenizer of a model folder, with another chat template if one is given.

    Raises:
        TokenizerError: it cannot be loaded, or needs code of its own.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 - it takes seconds, with torch

    try:
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        backend = tokenizer.backend_tokenizer
        template, tool_template = _templates(tokenizer, chat_template)
    except Exception as error:
        problem = " ".join(str(error).split())
        raise TokenizerError(
            f"the tokenizer of {model} cannot be loaded ({problem}); it must have a chat template, and a "
            "tokenizer.json that transformers reads without code from the model folder"
        ) from error
    # tokenizer.json may carry either; a sample is neither cut nor padded but by our own policy.
    backend.no_truncation()
    backend.no_padding()
    post_processor, backend.post_processor = backend.post_processor, None
    return TokenizerSource(backend, post_processor, template, tool_template, dict(tokenizer.special_tokens_map))


def _templates(tokenizer: Any, chat_template: Path | None) -> tuple[str, str]:
    if chat_template is not None:
        text = chat_template.read_text("utf-8")
        return text, text
    return tokenizer.get_chat_template(), tokenizer.get_chat_template(tools=[{}])
