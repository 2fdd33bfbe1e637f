"""Rows of a plan, read into memory that is used again for the next row: fresh pages cost as much as the decoding."""

import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from storage.errors import RowCountError
from storage.float8 import split
from storage.samples import Float8States, Sample
from storage.scratch import Scratch
from storage.specs import LayerId
from storage.storage_dtypes import FLOAT8
from tasks.trainer_files.base import Row
from tasks.trainer_files.plan import ExportPlan

_ALIGNMENT = 64


class _Memory(threading.local):
    """Of each thread: a block for the states of any row, and what decoding needs."""

    def __init__(self, num_bytes: int) -> None:
        self.scratch = Scratch()
        self._block = np.empty(num_bytes, np.uint8)  # its pages come as they are used
        self._used = 0

    def reset(self) -> None:
        """Take the memory of the row before for the next."""
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return memory until the next reset."""
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        taken = self._block[self._used : self._used + num_bytes]
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return taken.view(dtype).reshape(shape)


class RowReader:
    """Reads the rows of a plan; may be shared by threads, each of which has one row at a time."""

    def __init__(self, plan: ExportPlan) -> None:
        self._plan = plan
        spec, choice = plan.store.spec, plan.choice
        state_bytes = max(spec.hidden_size * spec.dtype.bits.itemsize, spec.stored_width * spec.stored_dtype.itemsize)
        longest = int(np.diff(plan.tokens.offsets)[plan.kept].max())
        # Aligned for each layer, since a file may have them one by one.
        self._memory = _Memory(len(choice.layers) * (longest * state_bytes + _ALIGNMENT))

    def read(self, i: int) -> Row:
        """Return row `i`; its states are read when they are asked for, and good until this thread reads another row.

        Raises:
            RowCountError: its sample has more or fewer states than tokens.
            CorruptObjectError: stored bytes are damaged (here or then).
        """
        plan, tokens, kept = self._plan, self._plan.tokens, int(self._plan.kept[i])
        sample = plan.store[plan.sample_hash(i)]
        input_ids = tokens.input_ids(kept).astype(np.int64)
        if sample.num_tokens != len(input_ids):
            raise RowCountError(
                f"row {kept} of the tokens artifact has {len(input_ids)} tokens and {sample.num_tokens} rows of "
                "states; use aerie validate --repair"
            )
        self._memory.reset()
        loss_mask = tokens.loss_mask(kept).astype(np.int64)
        weight = tokens.loss_weight(kept) if tokens.is_weighted else None
        is_float8 = plan.form.takes_float8 and plan.store.spec.storage_dtype == FLOAT8
        return Row(
            name=plan.name(i),
            input_ids=input_ids,
            loss_mask=loss_mask,
            loss_weight=weight,
            choice=plan.choice,
            read=lambda layers: self._read_states(sample, layers),
            read_float8=(lambda layers: self._read_float8(sample, layers)) if is_float8 else None,
        )

    def _read_states(self, sample: Sample, layers: Sequence[LayerId]) -> npt.NDArray[Any]:
        spec = self._plan.store.spec
        states = spec.view_logical(self._read(sample, layers, spec.hidden_size, spec.dtype.bits))
        return states if self._plan.form.as_stored else states.astype(ml_dtypes.bfloat16, copy=False)

    def _read_float8(self, sample: Sample, layers: Sequence[LayerId]) -> Float8States:
        spec = self._plan.store.spec
        return Float8States(*split(self._read(sample, layers, spec.stored_width, spec.stored_dtype)))

    def _read(self, sample: Sample, layers: Sequence[LayerId], width: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return [num_tokens, len(layers), width], each token's layers side by side, as files have them."""
        out = self._memory.take((sample.num_tokens, len(layers), width), dtype)
        slots = self._plan.store.spec.slots_of(layers)
        sample.read_into(out.transpose(1, 0, 2), slots, 0, self._memory.scratch)
        return out
