"""What of a chat is learnt, as the user chose it, and what of a text is learnt, as characters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Turns = Literal["all", "last"]
ASSISTANT = "assistant"


@dataclass(frozen=True)
class Supervision:
    """What of a chat is learnt, as the user chose it.

    Attributes:
        turns: all turns of these roles, or the last one.
        role_weights: role -> weight in the loss.
        end_of_turn: the token that ends a turn is learnt with it.
    """

    turns: Turns = "all"
    role_weights: Mapping[str, float] = field(default_factory=lambda: {ASSISTANT: 1.0})
    end_of_turn: bool = True

    @property
    def is_weighted(self) -> bool:
        """Whether a mask of zeros and ones does not say it all."""
        return any(weight not in (0.0, 1.0) for weight in self.role_weights.values())


@dataclass(frozen=True)
class Span:
    """Characters `start` to `end` of a text, learnt with a weight."""

    start: int
    end: int
    weight: float = 1.0


@dataclass(frozen=True)
class Rendered:
    """A text and what of it is learnt; of plain text, `adds_special_tokens` as the tokenizer does by itself."""

    text: str
    spans: Sequence[Span]
    adds_special_tokens: bool = False


@dataclass(frozen=True)
class AddedTokens:
    """Texts of the tokenizer's added tokens: all, and those that are special."""

    added: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
