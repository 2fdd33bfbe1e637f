"""Greedy speculative decoding: a drafter proposes, its target confirms, and what comes out is the target's own text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Proposer(Protocol):
    """What guesses the tokens to come (`eagle3.Draft`)."""

    def propose(self, states: Tensor, tokens: Tensor, count: int) -> list[int]:
        """Return `count` guesses; states [n, layers, hidden_size] and the tokens int64[n] after them are new."""
        ...


@dataclass(frozen=True)
class Decoded:
    """What was decoded.

    Attributes:
        tokens: the new tokens.
        accepted: of each forward of the target but the first, how many guesses it confirmed.
    """

    tokens: list[int]
    accepted: list[int]

    @property
    def acceptance_length(self) -> float:
        """Tokens by forward of the target: the confirmed guesses, and the one that it says itself."""
        return acceptance_length(self.accepted)


def acceptance_length(accepted: Sequence[int]) -> float:
    """Return tokens by forward of the target."""
    return 1 + sum(accepted) / len(accepted) if accepted else 1.0


@torch.inference_mode()
def decode(
    target: Any, proposer: Proposer, prompt: Sequence[int], layers: Sequence[int], *, num_new: int, num_drafts: int
) -> Decoded:
    """Decode at least `num_new` tokens, or up to the end of the text.

    Args:
        target: a transformers model.
        proposer: what guesses.
        prompt: its token ids.
        layers: indexes into transformers' `hidden_states` of the states that the proposer is given.
        num_new: tokens wanted.
        num_drafts: guesses a forward of the target.
    """
    found = target(torch.tensor([prompt]), use_cache=True, output_hidden_states=True)
    cache, tokens = found.past_key_values, [int(found.logits[0, -1].argmax())]
    states, following = _states(found, layers), [*prompt[1:], *tokens]
    ends, accepted = _end_tokens(target), []
    while len(tokens) < num_new and tokens[-1] not in ends:
        drafts = proposer.propose(states, torch.tensor(following), num_drafts)
        found = target(
            torch.tensor([[tokens[-1], *drafts]]), past_key_values=cache, use_cache=True, output_hidden_states=True
        )
        said = found.logits[0].argmax(dim=-1).tolist()
        right = next((i for i, draft in enumerate(drafts) if draft != said[i]), num_drafts)
        cache.crop(cache.get_seq_length() - num_drafts + right)
        states, following = _states(found, layers)[: right + 1], said[: right + 1]
        end = next((i for i, token in enumerate(following) if token in ends), right)
        tokens += following[: end + 1]
        accepted.append(end)
    return Decoded(tokens, accepted)


def _states(found: Any, layers: Sequence[int]) -> Tensor:
    return torch.stack([found.hidden_states[layer][0] for layer in layers], dim=1)


def _end_tokens(target: Any) -> set[int]:
    ends = target.generation_config.eos_token_id
    return set(ends if isinstance(ends, list) else [ends])
