"""What a row of the data is to the tokenizer: a chat, a text, or tokens already."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Chat:
    """The messages of one row, and the tools it declares, as the chat template takes them."""

    messages: Sequence[Message]
    tools: Sequence[Any] | None = None


@dataclass(frozen=True)
class PlainText:
    """A text without roles; all of it is learnt."""

    text: str


@dataclass(frozen=True)
class TokenRow:
    """Tokens made elsewhere: `input_ids: int32[num_tokens]`, `loss_mask: uint8[num_tokens]`."""

    input_ids: npt.NDArray[np.int32]
    loss_mask: npt.NDArray[np.uint8]


Row = Chat | PlainText | TokenRow
