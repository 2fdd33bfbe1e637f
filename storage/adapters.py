"""What trainers of drafters take, from the rows of a store: samples and batches of SpecForge, speculators and ModelOpt.

Each adapter has the keys, shapes, dtypes, padding and truncation of its trainer, as read from SpecForge 0.2.0
(`algorithms.eagle3.data`, `data.utils`), speculators 0.9.0 (`train.data`, `models.eagle3.data`) and ModelOpt 0.47.0
(`torch.speculative.eagle.utils`). Of the dataset's layers the last is what the trainer reads the target's logits from;
the others are what its drafter is fed, side by side in their order.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from storage.batch_memory import copy_values, fill_rows, make_values
from storage.dataset import HiddenStateDataset, Item
from storage.errors import SpecError
from storage.specs import LayerId

# SpecForge's EAGLE-3 fuses exactly three.
NUM_AUX_LAYERS = 3
# For the others one is enough, beside the last.
FEWEST_LAYERS = 2
# What ModelOpt's loss leaves out: the value of transformers' LabelSmoother.
IGNORED_LABEL = -100

Sample = dict[str, Any]


class Adapter(ABC):
    """Turns items of a `HiddenStateDataset` into what a trainer takes.

    It may be pickled, and knows nothing of the dataset but its layers, which it checks.

    Args:
        dataset: whose layers are those of the drafter and, last, the state that the trainer reads logits from.

    Raises:
        SpecError: the trainer does not take these layers; it says which it takes.
    """

    def __init__(self, dataset: HiddenStateDataset) -> None:
        self._check(dataset.layers, dataset.store.spec.num_layers)

    @abstractmethod
    def __call__(self, item: Item) -> Sample:
        """Return the sample that the trainer's own dataset would give for this row."""

    @abstractmethod
    def collate(self, items: Sequence[Item]) -> Sample:
        """Return the batch that the trainer's own collator would make of these rows."""

    @abstractmethod
    def _check(self, layers: tuple[LayerId, ...], num_layers: int) -> None: ...


class AdaptedDataset(Dataset[Sample]):
    """The rows of a dataset as a trainer's samples, for the trainer's own loader and collator.

    Attributes:
        approx_lengths: tokens of each row, as speculators' batch sampler asks for them.
        hidden_states_dtype: as its collator asks for it.
    """

    hidden_states_dtype = torch.bfloat16

    def __init__(self, dataset: HiddenStateDataset, adapter: Adapter) -> None:
        self.dataset = dataset
        self.adapter = adapter
        self.approx_lengths: list[int] = dataset.lengths.tolist()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Sample:
        return self.adapter(self.dataset[i])

    def __getitems__(self, batch: Sequence[int]) -> list[Sample]:
        """Return several samples, read at once."""
        return [self.adapter(item) for item in self.dataset.__getitems__(batch)]


class SpecForgeAdapter(Adapter):
    """SpecForge's offline EAGLE-3.

    A sample has a batch axis of one: `input_ids`, `attention_mask`, `loss_mask` int64[1, n]; `hidden_state`
    bfloat16[1, n, 3 * hidden_size]; `target` bfloat16[1, n, hidden_size], after the final norm. The last token is never
    learnt: there is nothing behind it. A batch is padded at the end with zeros to its longest sample.

    Args:
        dataset: of three layers, ascending, and `final`.
        max_length: tokens of a sample; what is behind is cut off.
    """

    def __init__(self, dataset: HiddenStateDataset, max_length: int) -> None:
        super().__init__(dataset)
        self.max_length = max_length

    def __call__(self, item: Item) -> Sample:
        """Return what `normalize_offline_sample` makes of a stored sample."""
        return self.collate([item])

    def collate(self, items: Sequence[Item]) -> Sample:
        """Return what `DataCollatorWithPadding` makes of such samples."""
        lengths = [min(len(item["input_ids"]), self.max_length) for item in items]
        shape = len(items), max(lengths)
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("input_ids", "attention_mask", "loss_mask")}
        aux, last = _empty_states(items, shape)
        for i, (item, n) in enumerate(zip(items, lengths, strict=True)):
            batch["input_ids"][i, :n] = item["input_ids"][:n]
            batch["attention_mask"][i, :n] = 1
            batch["loss_mask"][i, : n - 1] = item["loss_mask"][: n - 1]
            _put_states(item, aux[i], last[i], n)
        return {**batch, "hidden_state": aux.flatten(2), "target": last}

    def _check(self, layers: tuple[LayerId, ...], num_layers: int) -> None:
        if len(layers) != NUM_AUX_LAYERS + 1 or layers[-1] != "final":
            raise SpecError(
                f"the dataset has layers {list(layers)}; SpecForge takes three and what is after the final norm: "
                f"layers=[2, {num_layers // 2}, {num_layers - 3}, 'final']"
            )


class SpeculatorsAdapter(Adapter):
    """speculators' EAGLE-3, and what else it trains on hidden states.

    A sample has `input_ids`, `loss_mask`, `position_ids` int64[n], `lengths` int64[1]; `hidden_states` bfloat16[n,
    layers * hidden_size]; `verifier_last_hidden_states` bfloat16[n, hidden_size], before the final norm. A batch is one
    row of exactly `max_length` tokens, [1, max_length, ...]: sample behind sample, the last one cut where the row ends,
    zeros where it does not; `document_ids` says whose each token is, -1 for none.

    Args:
        dataset: of the drafter's layers, and last the stream before the final norm: the number of blocks.
        max_length: tokens of a batch, speculators' `total_seq_len`.
        shift: whether states are put beside the token that comes next, as its EAGLE-3 and P-EAGLE are fed; its other
            drafters are not.
        dtype: of the states in a batch, speculators' `hidden_states_dtype`.
    """

    def __init__(
        self, dataset: HiddenStateDataset, max_length: int, *, shift: bool = True, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        super().__init__(dataset)
        self.max_length = max_length
        self.shift = shift
        self.dtype = dtype
        self._width = dataset.store.spec.hidden_size
        self._num_aux = len(dataset.layers) - 1

    def __call__(self, item: Item) -> Sample:
        """Return what its `ArrowDataset` gives: the collator shifts."""
        states, n = item["hidden_states"].to(torch.bfloat16), len(item["input_ids"])
        return {
            "hidden_states": states[:, :-1].flatten(1),
            "input_ids": item["input_ids"],
            "verifier_last_hidden_states": states[:, -1],
            "loss_mask": item["loss_mask"],
            "lengths": torch.tensor([n]),
            "position_ids": torch.arange(n),
        }

    def collate(self, items: Sequence[Item]) -> Sample:
        """Return what its `CollateFn` makes of such samples, with `shift_batch` where `shift` says so."""
        room, skip = self.max_length, int(self.shift)
        whole = {name: torch.zeros(room, dtype=torch.int64) for name in ("input_ids", "loss_mask", "position_ids")}
        aux = make_values((room, self._num_aux, self._width), self.dtype)
        last = make_values((room, self._width), self.dtype)
        documents = torch.full((room,), -1)
        at = 0
        for number, item in enumerate(items):
            n = max(0, min(len(item["input_ids"]) - skip, room - at))
            end = at + n
            whole["input_ids"][at:end] = item["input_ids"][skip : skip + n]
            whole["loss_mask"][at:end] = item["loss_mask"][skip : skip + n]
            whole["position_ids"][at:end] = torch.arange(skip, skip + n)
            copy_values(item["hidden_states"][:n, :-1], aux[at:end])
            copy_values(item["hidden_states"][skip : skip + n, -1], last[at:end])
            documents[at:end] = number
            at = end
        aux[at:], last[at:] = 0, 0
        rows = {**whole, "hidden_states": aux.flatten(1), "verifier_last_hidden_states": last}
        rows["document_ids"] = documents
        return {**{name: row[None] for name, row in rows.items()}, "error_records": 0}

    def _check(self, layers: tuple[LayerId, ...], num_layers: int) -> None:
        if len(layers) < FEWEST_LAYERS or "final" in layers or layers[-1] != num_layers:
            raise SpecError(
                f"the dataset has layers {list(layers)}; speculators applies the final norm itself: put the stream "
                f"before it last, layers=[..., {num_layers}]; if the store lacks it, extract with --layers eagle3,L"
            )


class ModelOptAdapter(Adapter):
    """ModelOpt's offline EAGLE-3.

    A sample has `input_ids`, `attention_mask`, `loss_mask`, `labels` int64[n], the last the token that comes next, and
    -100 at the end; `base_model_hidden_states` bfloat16[n, hidden_size]; `aux_hidden_states` bfloat16[n, layers *
    hidden_size]; `base_hidden_prenorm`, whether the norm is still to be applied. In a batch all are cut or padded with
    zeros to exactly `train_length`, and states lie under `base_model_outputs`.

    Args:
        dataset: of the drafter's layers, and last `final`, or the number of blocks: the stream before the norm.
        train_length: tokens of each sample of a batch, ModelOpt's `train_len`.
        answer_only_loss: whether the loss mask is that of the store, rather than all tokens.
    """

    def __init__(self, dataset: HiddenStateDataset, train_length: int, *, answer_only_loss: bool = True) -> None:
        super().__init__(dataset)
        self.train_length = train_length
        self.answer_only_loss = answer_only_loss
        self._is_before_norm = dataset.layers[-1] != "final"

    def __call__(self, item: Item) -> Sample:
        """Return what its `OfflineSupervisedDataset` gives."""
        states, ids = item["hidden_states"].to(torch.bfloat16), item["input_ids"]
        return {
            "input_ids": ids,
            "base_model_hidden_states": states[:, -1],
            "aux_hidden_states": states[:, :-1].flatten(1),
            "attention_mask": torch.ones_like(ids),
            "loss_mask": item["loss_mask"] if self.answer_only_loss else torch.ones_like(ids),
            "labels": _next_tokens(ids),
            "base_hidden_prenorm": self._is_before_norm,
        }

    def collate(self, items: Sequence[Item]) -> Sample:
        """Return what its `EagleOfflineDataCollator` makes of such samples."""
        shape = len(items), self.train_length
        names = ("input_ids", "attention_mask", "loss_mask", "labels")
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in names}
        aux, last = _empty_states(items, shape)
        for i, item in enumerate(items):
            ids, n = item["input_ids"], min(len(item["input_ids"]), self.train_length)
            batch["input_ids"][i, :n] = ids[:n]
            batch["attention_mask"][i, :n] = 1
            batch["loss_mask"][i, :n] = item["loss_mask"][:n] if self.answer_only_loss else 1
            batch["labels"][i, :n] = _next_tokens(ids)[:n]
            _put_states(item, aux[i], last[i], n)
        states = {"base_model_hidden_states": last, "aux_hidden_states": aux.flatten(2)}
        return {**batch, "base_model_outputs": {**states, "base_hidden_prenorm": self._is_before_norm}}

    def _check(self, layers: tuple[LayerId, ...], num_layers: int) -> None:
        if len(layers) < FEWEST_LAYERS or "final" in layers[:-1] or layers[-1] not in ("final", num_layers):
            raise SpecError(
                f"the dataset has layers {list(layers)}; ModelOpt takes those of the drafter and last what the LM head "
                f"reads: layers=[..., 'final'], or {num_layers} for the stream before the norm"
            )


def _next_tokens(ids: Tensor) -> Tensor:
    return torch.cat([ids[1:], torch.full((1,), IGNORED_LABEL)])


def _empty_states(items: Sequence[Item], shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return room for states: [batch, n, layers - 1, hidden_size], and [batch, n, hidden_size] for the last."""
    _, num_layers, width = items[0]["hidden_states"].shape
    aux = make_values((*shape, num_layers - 1, width), torch.bfloat16)
    return aux, make_values((*shape, width), torch.bfloat16)


def _put_states(item: Item, aux: Tensor, last: Tensor, n: int) -> None:
    fill_rows(item["hidden_states"][:n, :-1], aux)
    fill_rows(item["hidden_states"][:n, -1], last)
