"""Loss masks: which tokens stand for the characters that are learnt."""

from collections.abc import Sequence
from typing import Protocol

from tasks.supervision import Span


class Encoding(Protocol):
    """The part of `tokenizers.Encoding` that tells which characters a token stands for."""

    def char_to_token(self, char_pos: int) -> int | None:
        """Return the first token whose offsets hold a character."""
        ...

    def token_to_chars(self, token_index: int) -> tuple[int, int] | None:
        """Return the offsets of a token."""
        ...

    def __len__(self) -> int:
        """Return the number of tokens."""
        ...


def token_spans(encoding: Encoding, text: str, spans: Sequence[Span]) -> list[tuple[int, int, float]]:
    """Return (first token, one past the last, weight) of each span: the tokens whose first character is in it."""
    return [
        (first_token(encoding, text, span.start), first_token(encoding, text, span.end), span.weight) for span in spans
    ]


def first_token(encoding: Encoding, text: str, position: int) -> int:
    """Return the first token that begins at or after a character; the number of tokens if none does."""
    found = next(
        (token for at in range(position, len(text)) if (token := encoding.char_to_token(at)) is not None), len(encoding)
    )
    while found < len(encoding) and _begin(encoding, found) < position:
        found += 1
    while found > 0 and _begin(encoding, found - 1) >= position:
        found -= 1
    return found


def _begin(encoding: Encoding, token: int) -> int:
    """Return where a token begins.

    Offsets may leave the leading space of a token out; it is in the token all the same, which then begins where the
    token before it ends.
    """
    start = _offsets(encoding, token)[0]
    return min(start, _offsets(encoding, token - 1)[1]) if token else start


def _offsets(encoding: Encoding, token: int) -> tuple[int, int]:
    return encoding.token_to_chars(token) or (0, 0)
