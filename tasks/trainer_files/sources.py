"""The table of files that can become a store: how the tokens and the states of one are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasks.errors import ImportFilesError
from tasks.trainer_files.torch_files import GZIP, read_torch

_STATE_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_NUMBER_DTYPES = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.float32)
_MAX_ID = (1 << 31) - 1


@dataclass(frozen=True)
class Source:
    """One row of the table.

    Attributes:
        name: what a user calls it.
        suffixes: of its files, which lie anywhere below a folder.
        read: the tensors of a file, by key; those of safetensors and of torch are mapped into memory.
        states: the key of each part of its states, and whether layers lie side by side in it or each has a slot.
        has_last: whether the last part is what the LM head reads.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[[Path], Mapping[str, Any]]
    states: tuple[str, ...]
    has_last: bool


def read_safetensors(path: Path) -> dict[str, Any]:
    """Read the tensors of a file.

    Raises:
        ImportFilesError: it is something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError) as error:
        raise ImportFilesError(f"{path} is no file of safetensors ({error}); take it out of the folder") from error


SOURCES: dict[str, Source] = {
    row.name: row
    for row in (
        Source("specforge", (".ckpt", f".ckpt{GZIP}"), read_torch, ("aux_hidden_state", "hidden_state"), has_last=True),
        Source("safetensors", (".safetensors",), read_safetensors, ("hidden_states",), has_last=False),
    )
}


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of a source, read.

    Attributes:
        path: the file.
        input_ids: int32[num_tokens].
        loss_mask: uint8[num_tokens].
        parts: its states, each [num_tokens, layers, hidden_size].
    """

    path: Path
    input_ids: np.ndarray[Any, np.dtype[np.int32]]
    loss_mask: np.ndarray[Any, np.dtype[np.uint8]]
    parts: tuple[Tensor, ...]

    @property
    def num_layers(self) -> int:
        """Layers of all parts."""
        return sum(part.shape[1] for part in self.parts)

    @property
    def dtype(self) -> str:
        """The dtype of its states, as numpy calls it."""
        return str(self.parts[0].dtype).removeprefix("torch.")

    def states(self) -> np.ndarray[Any, Any]:
        """Return all states, [num_tokens, layers, hidden_size]; bfloat16 as its bits, uint16."""
        joined = torch.cat(self.parts, dim=1)
        bits: np.ndarray[Any, Any] = (joined.view(torch.uint16) if joined.dtype == torch.bfloat16 else joined).numpy()
        return bits


def read_file(source: Source, path: Path, hidden_size: int) -> SourceFile:
    """Read a file and check that its parts fit each other and the model.

    Raises:
        ImportFilesError: they do not, or something lacks.
    """
    found = source.read(path)
    lacking = [key for key in ("input_ids", "loss_mask", *source.states) if not isinstance(found.get(key), Tensor)]
    if lacking:
        has = ", ".join(repr(key) for key in found)
        raise ImportFilesError(f"{path} has no tensor {lacking[0]} (it has {has:.300}); --from {source.name} needs it")
    for key in ("input_ids", "loss_mask"):
        _require_whole(found[key], _NUMBER_DTYPES, f"{path}: {key}")
    for key in source.states:
        _require_whole(found[key], _STATE_DTYPES, f"{path}: {key}")
    input_ids, loss_mask = (found[key].reshape(-1) for key in ("input_ids", "loss_mask"))
    parts = tuple(_split(found[key], len(input_ids), hidden_size, f"{path}: {key}") for key in source.states)
    if len(loss_mask) != len(input_ids) or not len(input_ids):
        raise ImportFilesError(
            f"{path} has {len(input_ids)} input_ids and {len(loss_mask)} of loss_mask; it is damaged"
        )
    if not bool(((loss_mask == 0) | (loss_mask == 1)).all()):
        raise ImportFilesError(f"{path} has a loss_mask with values other than 0 and 1; make it of these")
    if not bool(((input_ids >= 0) & (input_ids <= _MAX_ID)).all()):
        raise ImportFilesError(f"{path} has input_ids that are no ids of a vocabulary; it is damaged")
    return SourceFile(path, input_ids.numpy().astype(np.int32), loss_mask.numpy().astype(np.uint8), parts)


def _require_whole(tensor: Tensor, dtypes: Sequence[torch.dtype], what: str) -> None:
    """Refuse a tensor of other numbers, and one with more elements than the file has: one can stand for any number.

    Raises:
        ImportFilesError: it is such.
    """
    fits = tensor.layout == torch.strided and tensor.device.type == "cpu" and tensor.dtype in dtypes
    if not fits or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ImportFilesError(
            f"{what} is {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)!r:.200}; give a plain tensor of "
            f"one of {names}, with all of its elements"
        )


def _split(states: Tensor, num_tokens: int, hidden_size: int, what: str) -> Tensor:
    """Return states as [num_tokens, layers, hidden_size]; files may have a batch of one, or layers side by side.

    Raises:
        ImportFilesError: they are of another shape or dtype.
    """
    size = num_tokens * hidden_size
    fits = size > 0 and states.numel() % size == 0 and states.numel() > 0 and num_tokens in states.shape[:2]
    if not fits or states.dtype not in _STATE_DTYPES:
        raise ImportFilesError(
            f"{what} is {str(states.dtype).removeprefix('torch.')}{list(states.shape)} for {num_tokens} tokens of a "
            f"model of width {hidden_size}; give the model that it is of"
        )
    return states.reshape(num_tokens, -1, hidden_size)
