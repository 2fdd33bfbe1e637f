"""Loss masks: which tokens an assistant wrote, from what the chat template rendered."""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tasks.chats import Message, RowRejectedError

Span = tuple[int, int]


class Render(Protocol):
    """The chat template: messages to text."""

    def __call__(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        """Render `messages`; with `add_generation_prompt`, up to where the assistant begins to write."""
        ...


def assistant_spans(
    messages: Sequence[Message], text: str, render: Render, special_tokens: Collection[str]
) -> list[Span]:
    """Find, in the rendered `text`, the characters that the assistant wrote: each turn with its end-of-turn token.

    A turn begins where the prompt for it ends (the messages before it, with the generation prompt) and ends where the
    messages up to it end, less the white space that the template puts behind an end-of-turn token.

    Raises:
        RowRejectedError: `unstable_template`, one of these is not how `text` begins.
    """
    spans = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = render(messages[:index], add_generation_prompt=True)
        turn = render(messages[: index + 1], add_generation_prompt=False)
        if not (text.startswith(turn) and turn.startswith(prompt)):
            raise RowRejectedError("unstable_template", f"message {index} is rendered in two ways")
        spans.append((len(prompt), _end_of_turn(turn, len(prompt), special_tokens)))
    return spans


def _end_of_turn(turn: str, start: int, special_tokens: Collection[str]) -> int:
    stripped = turn.rstrip()
    ends_with_token = len(stripped) > start and stripped.endswith(tuple(special_tokens))
    return len(stripped) if ends_with_token else len(turn)


def loss_mask(offsets: npt.NDArray[np.int64], spans: Sequence[Span]) -> npt.NDArray[np.uint8]:
    """Return uint8[num_tokens], 1 for each token whose first character is in a span.

    Args:
        offsets: int64[num_tokens, 2], the characters each token stands for, as `tokenizers` gives them.
        spans: character ranges, end excluded.
    """
    starts = _first_characters(offsets)
    mask = np.zeros(len(offsets), np.uint8)
    for start, end in spans:
        mask[(starts >= start) & (starts < end)] = 1
    return mask


def _first_characters(offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    # Post-processors with trim_offsets (Llama 3) leave the leading space of a token out of its offsets; it is in the
    # token all the same, which then begins where the token before it ends.
    starts, ends = offsets[:, 0].copy(), np.maximum.accumulate(offsets[:, 1])
    starts[1:] = np.minimum(starts[1:], ends[:-1])
    return starts
