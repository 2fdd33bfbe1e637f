"""What a format of trainers is, and what it is given of a row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from storage.draft_vocabularies import DraftVocabulary
from storage.samples import Float8States
from storage.specs import LayerId
from storage.tokens import Tokens

# What a file holds, by key; numpy has no bfloat16, so that of ml_dtypes stands for it.
Tensors = Mapping[str, npt.NDArray[Any] | str | bool]
# The state after the final norm, and the one before it.
Norm = Literal["after", "before"]


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Which of a store's layers a file gets.

    Attributes:
        aux: those that a drafter reads, in the order of the store.
        last: the one that the LM head reads, `"final"`, or the number of blocks: before the norm; None: no such slot.
        norm: whether `last` is after the final norm or before it.
    """

    aux: tuple[LayerId, ...]
    last: LayerId | None = None
    norm: Norm | None = None

    @property
    def layers(self) -> tuple[LayerId, ...]:
        """All of them, the last one last."""
        return self.aux if self.last is None else (*self.aux, self.last)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a tokens artifact, and its states to be read.

    Attributes:
        name: what its file is called, without suffix: the sample hash, and a number where it is a copy.
        input_ids: int64[num_tokens].
        loss_mask: int64[num_tokens].
        loss_weight: float32[num_tokens] where tokens have weights other than 0 and 1, else None.
        choice: the layers of its file.
        read: gives the states of layers, contiguous [num_tokens, len(layers), hidden_size], until the next row is read;
            to be asked once for each layer of the choice.
        read_float8: gives their numbers, float8 of this shape, and scales float32[num_tokens, len(layers)], where the
            store has them so; else None.
    """

    name: str
    input_ids: npt.NDArray[np.int64]
    loss_mask: npt.NDArray[np.int64]
    loss_weight: npt.NDArray[np.float32] | None
    choice: LayerChoice
    read: Callable[[Sequence[LayerId]], npt.NDArray[Any]]
    read_float8: Callable[[Sequence[LayerId]], Float8States] | None = None


@dataclass(frozen=True)
class TrainerFormat:
    """One row of the table of formats.

    Attributes:
        name: what a user calls it.
        summary: what it is, in a few words.
        place: where the file of a row goes, from its name and its number among the exported rows.
        make_tensors: what the file holds.
        write: puts that into an open file, the same bytes each time.
        norms: which states may stand in the slot of the LM head, the better one first; none: it has no such slot.
        num_aux: how many layers a drafter must read; None: any number.
        counts_outputs: its owner counts the outputs of blocks from 0, so that an id there is ours less one.
        as_stored: states go in as the store gives them; else as bfloat16, or float8 if `takes_float8`.
        takes_float8: see `as_stored`.
        write_vocabulary: writes a draft vocabulary below a folder; told whether it is the only one.
        write_rows: writes what the format needs beside the files of rows, into an empty folder: given the tokens
            artifact and int64[n], the rows of it that are exported. The files' names, in the order in which they
            become visible.
    """

    name: str
    summary: str
    place: Callable[[str, int], str]
    make_tensors: Callable[[Row], Tensors]
    write: Callable[[BinaryIO, Tensors], None]
    write_vocabulary: Callable[[Path, DraftVocabulary, bool], list[Path]]
    norms: tuple[Norm, ...] = ()
    num_aux: int | None = None
    counts_outputs: bool = False
    as_stored: bool = False
    takes_float8: bool = False
    write_rows: Callable[[Path, Tokens, npt.NDArray[np.int64]], list[Path]] | None = None

    def owner_ids(self, choice: LayerChoice) -> list[int]:
        """Return the ids of `choice.aux` as the format's owner counts: what its configuration must say."""
        return [int(layer) - self.counts_outputs for layer in choice.aux if layer != "final"]
