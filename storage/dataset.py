"""A store as a torch dataset: the rows of a tokens artifact, each with its token ids, loss mask and states."""

import math
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from storage.batch_memory import BLOCKS, copy_values, make_values
from storage.errors import RowCountError, SampleNotFoundError, SpecError
from storage.files import backend_of
from storage.hashes import names_of
from storage.paths import ObjectPath, StorePath
from storage.read_ahead import make_ahead
from storage.samplers import TokenBatchSampler
from storage.specs import LayerId
from storage.store import open_store
from storage.tokens import open_tokens

Item = dict[str, Tensor]


class HiddenStateDataset(Dataset[Item]):
    """The kept rows of a tokens artifact, in their order, with duplicates; it may be pickled, or forked with.

    An item has `input_ids` int64[num_tokens], `loss_mask` int64[num_tokens], `hidden_states` [num_tokens, len(layers),
    hidden_size] in the dtype that `Sample.hidden_states` gives, and `row` int64[], the 0-based number of the row over
    all data files.

    Args:
        store_path: the store's folder.
        tokens_digest: the tokens artifact, as in a run's report.
        spec_digest: as for `open_store`.
        layers: captured layers, in the order wanted; all by default.
        missing: what to do about rows of which the store lacks the states: refuse them all, or leave those rows out.
            While others write, ranks that skip may see different rows: they must not train together then.
        threads: that read a batch; by default one a core, at most 16, in a worker process of a DataLoader one alone; on
            object storage 16 in both.
        reuse_memory: read each batch to where the thread's last one was, which takes half the time: the states of items
            last until then. For collators that copy, as `pad_batch` and those of `storage.adapters` do.

    Attributes:
        layers: the captured layers that an item has, in its order.
        rows: int64[n], number of each row among those of the tokens artifact.
        hashes: uint8[n, 32], sample hash of each row.
        lengths: int64[n], tokens of each row.

    Raises:
        StorageError: store or artifact are not there or damaged, or a layer was not captured.
        SampleNotFoundError: states are missing.
    """

    def __init__(
        self,
        store_path: StorePath | str,
        tokens_digest: str,
        *,
        spec_digest: str | None = None,
        layers: Sequence[LayerId] | None = None,
        missing: Literal["error", "skip"] = "error",
        threads: int | None = None,
        reuse_memory: bool = False,
    ) -> None:
        self._where = store_path, tokens_digest
        self._reuses = reuse_memory
        self._threads = threads
        self._spec_digest = spec_digest
        self._open()
        self._spec_digest = self.store.spec_digest
        self.layers = tuple(self.store.spec.layers if layers is None else layers)
        self.store.spec.slots_of(self.layers)
        self._choose_rows(self._stored_rows(missing))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Item:
        return self.__getitems__([range(len(self))[i]])[0]

    def __getitems__(self, batch: Sequence[int]) -> list[Item]:
        """Return several items, read at once on threads; a DataLoader calls this.

        Raises:
            CorruptObjectError: stored bytes are damaged.
        """
        return self.read_items(batch, is_alone=get_worker_info() is None)

    def read_items(self, batch: Sequence[int], *, is_alone: bool) -> list[Item]:
        """Return several items; where others read beside it, on as few threads as serve.

        Raises:
            CorruptObjectError: stored bytes are damaged.
        """
        threads = self._threads or (None if is_alone else backend_of(self.store.path).min_threads)
        names = names_of(self.hashes[batch])
        block = self._block_for(batch) if self._reuses else None
        states = self.store.read_hidden_states(names, self.layers, threads=threads, out=block)
        return [self._item(int(self.rows[i]), values) for i, values in zip(batch, states, strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        opened = ("store", "tokens", "hashes", "lengths", "_blocks")
        return {name: value for name, value in self.__dict__.items() if name not in opened}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        self._choose_rows(self.rows)

    def _block_for(self, batch: Sequence[int]) -> npt.NDArray[Any]:
        shape = len(self.layers), int(self.lengths[batch].sum()), self.store.spec.hidden_size
        dtype = self.store.spec.dtype.bits
        self._blocks.block = None  # where the thread's last items were
        self._blocks.block = BLOCKS.take(math.prod(shape) * dtype.itemsize)
        return self.store.spec.view_logical(self._blocks.block.view(dtype).reshape(shape))

    def _open(self) -> None:
        self._blocks = threading.local()
        path, digest = self._where
        self.store = open_store(path, self._spec_digest)
        tokens = open_tokens(path, digest)
        if tokens is None:
            raise SpecError(f"{path} has no tokens artifact {digest}; take tokens_digest from the report of a run")
        self.tokens = tokens

    def _choose_rows(self, rows: npt.NDArray[np.int64]) -> None:
        self.rows = rows
        self.hashes = self.tokens.hashes[rows]
        self.lengths = np.diff(self.tokens.offsets)[rows]

    def _stored_rows(self, missing: str) -> npt.NDArray[np.int64]:
        is_stored = self.store.catalog.index.find(self.tokens.hashes) >= 0
        if not is_stored.all() and missing == "error":
            first = names_of(self.tokens.hashes[~is_stored][:1])[0]
            raise SampleNotFoundError(
                f"{(~is_stored).sum()} of {len(is_stored)} rows have no states in {self.store.path} (the first is "
                f"sample {first}); extract them first, or leave them out with missing='skip'"
            )
        return np.flatnonzero(is_stored)

    def _item(self, kept: int, states: npt.NDArray[Any]) -> Item:
        input_ids = torch.from_numpy(self.tokens.input_ids(kept).astype(np.int64))
        if len(states) != len(input_ids):
            raise RowCountError(
                f"row {kept} of the tokens artifact has {len(input_ids)} tokens and {len(states)} rows of states; "
                "use aerie validate --repair"
            )
        return {
            "input_ids": input_ids,
            "loss_mask": torch.from_numpy(self.tokens.loss_mask(kept).astype(np.int64)),
            "hidden_states": to_tensor(states),
            "row": torch.tensor(int(self.tokens.rows[kept])),
        }


def to_tensor(states: npt.NDArray[Any]) -> Tensor:
    """Return states as a tensor over the same memory; torch does not know numpy's bfloat16."""
    if states.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(states.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(states)


def pad_batch(items: Sequence[Item], pad_token_id: int = 0) -> Item:
    """Put items of a `HiddenStateDataset` together, padded at the end to the longest.

    Returns:
        `input_ids`, `loss_mask`, `attention_mask` int64[batch, longest], the last with 1 where there is a token;
        `hidden_states` [batch, longest, layers, hidden_size]; `row` int64[batch].
    """
    mask = [torch.ones_like(item["loss_mask"]) for item in items]
    return {
        "input_ids": _pad([item["input_ids"] for item in items], pad_token_id),
        "loss_mask": _pad([item["loss_mask"] for item in items]),
        "attention_mask": _pad(mask),
        "hidden_states": _pad([item["hidden_states"] for item in items]),
        "row": torch.stack([item["row"] for item in items]),
    }


def _pad(tensors: list[Tensor], value: int = 0) -> Tensor:
    longest = max(map(len, tensors))
    padded = make_values((len(tensors), longest, *tensors[0].shape[1:]), tensors[0].dtype)
    for row, tensor in zip(padded, tensors, strict=True):
        copy_values(tensor, row[: len(tensor)])
        row[len(tensor) :] = value
    return padded


class HiddenStateLoader:
    """Batches of a dataset in the order of a sampler, which counts those handed out: a loop can be taken up again.

    Iterating gives what is left of the current epoch and then moves to the next one:

    ```
    loader.load_state_dict(checkpoint)  # if there is one
    while loader.sampler.epoch < num_epochs:
        for batch in loader:
            train(batch)
            checkpoint = loader.state_dict()  # counts this batch, but none of those that workers fetched ahead
    ```

    Args:
        dataset: the rows.
        sampler: made from the dataset's `hashes` and `lengths`.
        pad_token_id: for `pad_batch`.
        num_threads: threads of this process that make batches ahead, in place of workers: a worker's batch goes through
            memory that costs more to get than the states cost to read.
        options: of torch's DataLoader, such as `num_workers`, `multiprocessing_context`, `pin_memory` or `collate_fn`.
            Workers that read object storage are spawned, unless this says otherwise: they cannot be forked.

    Raises:
        ValueError: there are threads and workers, or threads and other options of the DataLoader than `collate_fn`.
    """

    def __init__(
        self,
        dataset: HiddenStateDataset,
        sampler: TokenBatchSampler,
        *,
        pad_token_id: int = 0,
        num_threads: int = 0,
        **options: Any,
    ) -> None:
        self.sampler = sampler
        options = {"collate_fn": partial(pad_batch, pad_token_id=pad_token_id), **options}
        if num_threads and len(options) > 1:
            raise ValueError(f"num_threads={num_threads} takes no option but collate_fn; these are {sorted(options)}")
        self._num_threads = num_threads
        self._dataset = dataset
        self._collate: Callable[[Sequence[Item]], Item] = options["collate_fn"]
        if isinstance(dataset.store.path, ObjectPath) and options.get("num_workers"):
            options.setdefault("multiprocessing_context", "spawn")  # the client of a bucket does not outlive a fork
        self._loader: DataLoader[Item] = DataLoader(dataset, batch_sampler=sampler, **options)
        weakref.finalize(self, BLOCKS.clear).atexit = False

    def __iter__(self) -> Iterator[Item]:
        ahead = make_ahead(self._make, self.sampler, self._num_threads) if self._num_threads else self._loader
        for batch in ahead:
            self.sampler.advance()
            yield batch
        self.sampler.next_epoch()

    def __len__(self) -> int:
        return len(self.sampler)

    def _make(self, batch: Sequence[int]) -> Item:
        return self._collate(self._dataset.read_items(batch, is_alone=False))

    def state_dict(self) -> dict[str, Any]:
        """Return `TokenBatchSampler.state_dict`: the batches handed out count as consumed."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken, as `TokenBatchSampler.load_state_dict`."""
        self.sampler.load_state_dict(state)
