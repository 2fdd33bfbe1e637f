"""The plan of an export: which rows, under which names, how many bytes, and whether there is room for them."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from storage.errors import SampleNotFoundError
from storage.files import backend_of
from storage.hashes import Hashes, is_new, names_of, order_of
from storage.store import Store
from storage.tokens import Tokens
from tasks.errors import ExportError, NotEnoughSpaceError
from tasks.trainer_files.base import LayerChoice, Row, TrainerFormat

Missing = Literal["error", "skip"]
# A file's own header, and what a file system rounds up.
FILE_BYTES = 6 << 10
# Kept free beside the files.
RESERVE_BYTES = 64 << 20


@dataclass(frozen=True)
class ExportPlan:
    """What an export writes.

    Attributes:
        store: where states come from.
        tokens: the rows.
        form: the format.
        choice: the layers.
        folder: where files go.
        kept: int64[n], rows among those that the artifact keeps, ascending: row i of the export is kept row `kept[i]`.
        num_missing: rows that were asked for and have no states.
    """

    store: Store
    tokens: Tokens
    form: TrainerFormat
    choice: LayerChoice
    folder: Path
    kept: npt.NDArray[np.int64]
    num_missing: int

    @cached_property
    def hashes(self) -> Hashes:
        """uint8[n, 32], the sample of each row."""
        return self.tokens.hashes[self.kept]

    @cached_property
    def copies(self) -> npt.NDArray[np.int64]:
        """int64[n], how many earlier rows of the artifact are of the same sample, whether exported or not."""
        return count_copies(self.tokens.hashes)[self.kept]

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of all rows."""
        return int(np.diff(self.tokens.offsets)[self.kept].sum())

    @cached_property
    def num_bytes(self) -> int:
        """Bytes of all files, to within a little: none is compressed."""
        return self.num_tokens * self._bytes_per_token() + len(self.kept) * FILE_BYTES

    def free_bytes(self) -> int:
        """Return the room where the files go."""
        return int(backend_of(self.folder).free_bytes(self.folder) or 0)

    def sample_hash(self, i: int) -> str:
        """Return the sample of row `i` of the export."""
        return names_of(self.hashes[i : i + 1])[0]

    def name(self, i: int) -> str:
        """Return what the file of row `i` is called: its sample, and a number from 2 on for copies."""
        copy = int(self.copies[i])
        return self.sample_hash(i) + (f"-{copy + 1}" if copy else "")

    def place(self, i: int) -> str:
        """Return where the file of row `i` goes, below the folder."""
        return self.form.place(self.name(i), i)

    def identity(self) -> dict[str, Any]:
        """Return what all files of a folder have in common."""
        return {
            "format": self.form.name,
            "spec_digest": self.store.spec_digest,
            "tokens_digest": self.tokens.digest,
            "layers": list(self.choice.layers),
        }

    def describe(self) -> dict[str, Any]:
        """Return what else a manifest says."""
        norm = f"{self.choice.norm} the final norm" if self.choice.norm else None
        return {
            "store": str(self.store.path.absolute()),
            "drafter_layers": list(self.choice.aux),
            "drafter_layers_as_the_trainer_counts": self.form.owner_ids(self.choice),
            "last_layer": self.choice.last,
            "norm": norm,
            "rows": len(self.kept),
            "rows_without_states": self.num_missing,
            "tokens": self.num_tokens,
            "spec": self.store.spec.to_json(),
        }

    def _bytes_per_token(self) -> int:
        """Measure the tensors of a row of one token."""
        one, width = np.zeros(1, np.int64), self.store.spec.hidden_size
        dtype = self.store.spec.dtype.states if self.form.as_stored else "bfloat16"
        weight = np.zeros(1, np.float32) if self.tokens.is_weighted else None
        row = Row("", one, one, weight, self.choice, lambda layers: np.zeros((1, len(layers), width), dtype))
        tensors = self.form.make_tensors(row)
        return sum(value.nbytes for value in tensors.values() if isinstance(value, np.ndarray))


def choose_rows(store: Store, tokens: Tokens, rows: slice, missing: Missing) -> tuple[npt.NDArray[np.int64], int]:
    """Return the kept rows of a slice that have states, int64[n], and how many have none.

    Raises:
        ExportError: the slice has no row, or none with states.
        SampleNotFoundError: states are missing, and `missing` is `error`.
    """
    asked = np.arange(len(tokens))[rows]
    if not len(asked):
        raise ExportError(f"rows {rows.start or 0}:{rows.stop} are none of {len(tokens)}; give START:STOP within these")
    hashes = tokens.hashes[asked]
    is_stored = store.catalog.index.find(hashes) >= 0
    if not is_stored.all() and (missing == "error" or not is_stored.any()):
        first = names_of(hashes[~is_stored][:1])[0]
        raise SampleNotFoundError(
            f"{(~is_stored).sum()} of {len(asked)} rows have no states in {store.path} (the first is sample {first}); "
            "extract them first, or leave them out with --missing skip"
        )
    return asked[is_stored], int((~is_stored).sum())


def count_copies(hashes: Hashes) -> npt.NDArray[np.int64]:
    """Return int64[n], how many earlier ones of `hashes` equal each."""
    order = order_of(hashes)
    places = np.arange(len(hashes))
    firsts = np.maximum.accumulate(np.where(is_new(hashes[order]), places, 0)) if len(hashes) else places
    copies = np.empty(len(hashes), np.int64)
    copies[order] = places - firsts
    return copies


def require_room(plan: ExportPlan, present_bytes: int = 0) -> None:
    """Refuse an export that does not fit the disk.

    Raises:
        NotEnoughSpaceError: with what is needed, what is free, and the cure.
    """
    free, needed = plan.free_bytes(), plan.num_bytes - present_bytes + RESERVE_BYTES
    if needed > free:
        raise NotEnoughSpaceError(
            f"{plan.folder} has {free:,} bytes free, the export needs about {needed:,} ({plan.num_tokens:,} tokens); "
            "free some space, choose fewer --rows or --layers, or export elsewhere"
        )
