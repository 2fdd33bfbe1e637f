"""What a model's LM head reads out of stored final states: how often it is the next token, by position."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor

from storage.store import Store
from tasks.errors import PlotError
from tasks.fingerprints import model_fingerprint

# A head has up to 200,000 rows: so many states take some seconds a billion of its weights on two cores.
MOST_STATES = 4096
ROWS_PER_SAMPLE = 512
_BATCH = 256
FINAL: Literal["final"] = "final"
# Where checkpoints have it; without a head of its own a model reads out by its embeddings.
_HEADS = ("lm_head.weight", "embed_tokens.weight")


@dataclass(frozen=True)
class Agreement:
    """How often the token that the LM head ranks first is the one that follows.

    Attributes:
        edges: of the bins of positions: bin i is of those from edges[i] to below edges[i + 1].
        counts: states in each bin.
        agreed: those of them whose next token was ranked first.
    """

    edges: list[int]
    counts: list[int]
    agreed: list[int]


def measure_agreement(store: Store, hashes: Sequence[str], model: Path) -> Agreement:
    """Read the next token out of the first states of some samples.

    Right states agree in about as many places as the model has the text right: half, of text like what it was trained
    on. States of another layer, another model or a shifted row agree hardly anywhere.

    Args:
        store: the states.
        hashes: samples to look at, as many as there is time for.
        model: folder of the model that they are of.

    Raises:
        PlotError: the states are of another model, have no layer `final`, or the model has no head that can be read.
        CorruptObjectError: a sample is damaged.
    """
    if FINAL not in store.spec.layers:
        raise PlotError(f"{store.path} has no layer {FINAL}, from which next tokens are read; leave --model out")
    if model_fingerprint(model) != store.spec.model_fingerprint:
        raise PlotError(f"{model} is not the model of these states; give that, or leave --model out")
    head = _read_head(model)
    edges = [0, *(1 << power for power in range((ROWS_PER_SAMPLE - 1).bit_length() + 1))]
    counts, agreed = np.zeros((2, len(edges) - 1), np.int64)
    for states, following in _pairs(store, hashes):
        found = np.concatenate([_read_out(head, part) for part in torch.split(states, _BATCH)])
        places = np.searchsorted(edges, np.arange(len(found)), "right") - 1
        np.add.at(counts, places, 1)
        np.add.at(agreed, places, found == following)
    return Agreement(edges, counts.tolist(), agreed.tolist())


def _pairs(store: Store, hashes: Sequence[str]) -> Iterator[tuple[Tensor, npt.NDArray[np.int32]]]:
    """Give the first states of samples, and the token that follows each, until they are enough."""
    left = MOST_STATES
    for name in hashes:
        num_rows = min(ROWS_PER_SAMPLE, store[name].num_tokens - 1, left)
        if num_rows > 0:
            [states] = store.read_hidden_states([name], [FINAL], slice(0, num_rows))
            yield torch.from_numpy(states[:, 0].astype(np.float32)), store[name].input_ids[1 : num_rows + 1]
            left -= num_rows


def _read_out(head: Tensor, states: Tensor) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = (states @ head.T).argmax(dim=1).numpy()
    return found


def _read_head(model: Path) -> Tensor:
    """Return the weights of the LM head: float32[vocab_size, hidden_size]."""
    found: dict[str, Path] = {}
    for file in sorted(model.glob("*.safetensors")):
        with safe_open(file, framework="pt") as weights:
            found |= {key: file for key in weights.keys() if key.endswith(_HEADS)}  # noqa: SIM118 - it is no dict
    key = next((key for suffix in _HEADS for key in found if key.endswith(suffix)), None)
    if key is None:
        raise PlotError(f"{model} has no {' or '.join(_HEADS)} in files of safetensors; leave --model out")
    with safe_open(found[key], framework="pt") as weights:
        head: Tensor = weights.get_tensor(key)
    if not head.is_floating_point():
        raise PlotError(f"{key} of {model} is quantized to {head.dtype}; leave --model out")
    return head.float()
