"""What becomes of a sample that is too long or teaches too little, and which rows are taken; each row by itself."""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tasks.chat_tokenizer import Encoded
from tasks.chats import Chat, PlainText, Row
from tasks.rejections import RowRejectedError
from tasks.token_options import TokenOptions


@dataclass(frozen=True)
class Sample:
    """What is kept: `input_ids: int32[num_tokens]`, `loss_weight: float32[num_tokens]`, and whether it was cut."""

    input_ids: npt.NDArray[np.int32]
    loss_weight: npt.NDArray[np.float32]
    truncated: bool

    @property
    def loss_mask(self) -> npt.NDArray[np.uint8]:
        """uint8[num_tokens], 1 where there is a weight."""
        return (self.loss_weight > 0).view(np.uint8)


def fit_sample(encoded: Encoded, options: TokenOptions) -> Sample:
    """Cut ids and mask alike where that is the policy, and refuse what leaves too little to learn.

    Raises:
        RowRejectedError: `empty`, `too_long`, `nothing_to_supervise` or `too_little_to_supervise`.
    """
    num_tokens = len(encoded.input_ids)
    if num_tokens == 0:
        raise RowRejectedError("empty")
    kept = num_tokens if num_tokens <= options.max_length else _choose_length(encoded, options)
    weights = np.zeros(kept, np.float32)
    for first, last, weight in encoded.spans:
        weights[first:last] = weight
    supervised = np.count_nonzero(weights)
    cut = f"of its {num_tokens} tokens the first {kept} were kept" if kept < num_tokens else ""
    if not supervised:
        raise RowRejectedError("nothing_to_supervise", cut)
    if supervised < options.min_supervised_tokens:
        detail = f"{supervised} tokens are learnt, the least is {options.min_supervised_tokens}"
        raise RowRejectedError("too_little_to_supervise", f"{detail}; {cut}" if cut else detail)
    return Sample(encoded.input_ids[:kept], weights, truncated=kept < num_tokens)


def _choose_length(encoded: Encoded, options: TokenOptions) -> int:
    """Return how many tokens of a sample that is too long are kept."""
    limit = options.max_length
    if options.too_long == "truncate":
        return limit
    detail = f"it has {len(encoded.input_ids)} tokens, the limit is {limit}"
    if options.too_long == "reject":
        raise RowRejectedError("too_long", detail)
    whole = [last for first, last, _ in encoded.spans if first < last <= limit]
    if not whole:
        raise RowRejectedError("too_long", f"{detail}, and no turn ends before it")
    return max(whole)


def is_sampled(row: Row, options: TokenOptions) -> bool:
    """Say whether a row is taken; that depends on its content and the seed alone, not on where it stands."""
    if options.sample_fraction >= 1:
        return True
    content = f"{options.sample_seed}:".encode() + _content(row)
    return int.from_bytes(hashlib.sha256(content).digest()[:8]) < options.sample_fraction * 2**64


def _content(row: Row) -> bytes:
    if isinstance(row, Chat):
        return json.dumps([row.messages, row.tools], sort_keys=True).encode()
    if isinstance(row, PlainText):
        return row.text.encode("utf-8", "surrogatepass")
    return row.input_ids.tobytes() + row.loss_mask.tobytes()
