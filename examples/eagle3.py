"""An EAGLE-3 drafter in plain torch: one decoder layer over its target's own states, embeddings and LM head."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

Past = tuple[Tensor, Tensor] | None


class Drafter(nn.Module):
    """Says token p + 2 from the target's states of token p and the embedding of token p + 1.

    Args:
        target: a transformers model of Llama's kind: its sizes, and its embeddings and LM head, which stay as they are.
        target_ids: int64[draft_size], the target's id of each token that the drafter can say.
        layers: three indexes into transformers' `hidden_states`, those of the states that it is fed.
    """

    target_ids: Tensor
    embedding: Tensor
    head: Tensor

    def __init__(self, target: Any, target_ids: Tensor, layers: tuple[int, ...]) -> None:
        super().__init__()
        self.layers = layers
        size = target.config.hidden_size
        self.register_buffer("target_ids", target_ids)
        self.register_buffer("embedding", target.get_input_embeddings().weight.detach(), persistent=False)
        self.register_buffer("head", target.get_output_embeddings().weight.detach()[target_ids], persistent=False)
        self.fuse = nn.Linear(len(layers) * size, size, bias=False)
        self.layer = DecoderLayer(target.config)
        self.norm = nn.RMSNorm(size, target.config.rms_norm_eps)

    def begin_like(self, target: Any) -> None:
        """Begin as the target's last block over its last captured state: it has less to learn from there."""
        size = target.config.hidden_size
        with torch.no_grad():
            self.fuse.weight.mul_(0.1)
            self.fuse.weight[:, -size:] += torch.eye(size)
        self.layer.begin_like(target.model.layers[-1])

    def unroll(self, states: Tensor, tokens: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield what the LM head would read, [batch, n, hidden_size], at each step of a draft (training-time test).

        Step j at position p is fed what step j - 1 gave at p - 1, and sees what it would see in a draft: the target's
        states up to p - j, and the steps since. Positions below j are of no use.

        Args:
            states: [batch, n, layers, hidden_size], the target's.
            tokens: int64[batch, n], the token after each.
            steps: how many.
        """
        hidden, past = self.fuse(states.flatten(2)).float(), None
        embeds = F.embedding(tokens, self.embedding)
        positions = torch.arange(tokens.shape[1])
        for step in range(steps):
            hidden, past = self.layer(hidden, embeds, positions, past, _draft_mask(positions, step))
            yield self.norm(hidden)
            hidden = hidden.roll(1, dims=1)

    def save(self, file: Path) -> None:
        """Write what was trained."""
        torch.save({"layers": list(self.layers), "weights": self.state_dict()}, file)

    @classmethod
    def load(cls, file: Path, target: Any) -> Self:
        """Read what `save` wrote."""
        saved = torch.load(file, weights_only=True)
        drafter = cls(target, saved["weights"]["target_ids"], tuple(saved["layers"]))
        drafter.load_state_dict(saved["weights"])
        return drafter


class Draft:
    """The drafts for one text; it remembers the keys and values of what the target has confirmed."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._past: Past = None
        self._length = 0

    @torch.inference_mode()
    def propose(self, states: Tensor, tokens: Tensor, count: int) -> list[int]:
        """Return the `count` tokens that come next, as the target's ids.

        Args:
            states: [n, layers, hidden_size] of the tokens that were confirmed since the last call.
            tokens: int64[n], the token after each.
            count: how many.
        """
        drafter, new = self._drafter, len(tokens)
        positions = torch.arange(self._length, self._length + new)
        mask = torch.arange(self._length + new) <= positions[:, None]
        hidden = drafter.fuse(states.flatten(1))[None]
        hidden, self._past = drafter.layer(hidden, drafter.embedding[tokens][None], positions, self._past, mask)
        self._length += new
        past, drafted = self._past, [self._say(hidden)]
        for step in range(count - 1):
            embeds, position = drafter.embedding[drafted[-1:]][None], torch.tensor([self._length + step])
            hidden, past = drafter.layer(hidden[:, -1:], embeds, position, past, None)
            drafted.append(self._say(hidden))
        return drafted

    def _say(self, hidden: Tensor) -> int:
        logits = self._drafter.norm(hidden[0, -1]) @ self._drafter.head.T
        return int(self._drafter.target_ids[logits.argmax()])


class DecoderLayer(nn.Module):
    """A block of Llama whose attention reads embedding and state side by side."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        width = getattr(config, "head_dim", None) or size // config.num_attention_heads
        self.head_width, self.groups = width, config.num_attention_heads // config.num_key_value_heads
        self.theta = config.rope_parameters["rope_theta"]
        self.embed_norm, self.hidden_norm, self.mlp_norm = (nn.RMSNorm(size, eps) for _ in range(3))
        self.query = nn.Linear(2 * size, config.num_attention_heads * width, bias=False)
        self.key, self.value = (nn.Linear(2 * size, config.num_key_value_heads * width, bias=False) for _ in range(2))
        self.output = nn.Linear(config.num_attention_heads * width, size, bias=False)
        self.gate, self.up = (nn.Linear(size, config.intermediate_size, bias=False) for _ in range(2))
        self.down = nn.Linear(config.intermediate_size, size, bias=False)

    def begin_like(self, block: Any) -> None:
        """Take the weights of a block of the target; those that read embeddings are nearly nothing at first."""
        attention, mlp, size = block.self_attn, block.mlp, self.mlp_norm.weight.shape[0]
        pairs: list[tuple[nn.Module, Any]] = [(self.output, attention.o_proj), (self.gate, mlp.gate_proj)]
        pairs += [(self.up, mlp.up_proj), (self.down, mlp.down_proj)]
        pairs += [(self.hidden_norm, block.input_layernorm), (self.mlp_norm, block.post_attention_layernorm)]
        with torch.no_grad():
            for own, other in pairs:
                own.load_state_dict(other.state_dict())
            others = (attention.q_proj, attention.k_proj, attention.v_proj)
            for wide, other in zip((self.query, self.key, self.value), others, strict=True):
                wide.weight[:, :size] *= 0.1
                wide.weight[:, size:] = other.weight

    def forward(
        self, hidden: Tensor, embeds: Tensor, positions: Tensor, past: Past, mask: Tensor | None
    ) -> tuple[Tensor, Past]:
        """Return the new states [batch, n, hidden_size], and keys and values with those of `past` before them."""
        both = torch.cat([self.embed_norm(embeds), self.hidden_norm(hidden)], dim=-1)
        query = self._rotate(self._split(self.query(both)), positions)
        keys, values = self._rotate(self._split(self.key(both)), positions), self._split(self.value(both))
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        many_keys, many_values = (x.repeat_interleave(self.groups, dim=1) for x in (keys, values))
        attended = F.scaled_dot_product_attention(query, many_keys, many_values, attn_mask=mask)
        hidden = hidden + self.output(attended.transpose(1, 2).flatten(2))
        normed = self.mlp_norm(hidden)
        return hidden + self.down(F.silu(self.gate(normed)) * self.up(normed)), (keys, values)

    def _split(self, projected: Tensor) -> Tensor:
        batch, n, width = projected.shape
        return projected.view(batch, n, width // self.head_width, self.head_width).transpose(1, 2)

    def _rotate(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Turn by position, as Llama does: channel i with channel i + half."""
        half = self.head_width // 2
        angles = positions[:, None] * self.theta ** (-torch.arange(half) / half)
        cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
        first, second = heads[..., :half], heads[..., half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def _draft_mask(positions: Tensor, step: int) -> Tensor:
    """Return bool[n, (step + 1) * n]: what each position sees of itself at each step so far."""
    behind = positions[:, None] - positions
    return torch.cat([behind >= step, *(behind == step - earlier for earlier in range(1, step + 1))], dim=1)
