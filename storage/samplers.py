"""Where a training loop stands in its epochs, and the batches that come next: exact after any stop."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from storage.digests import canonical_json
from storage.epochs import BatchRules, Rows, make_batches, split_batches
from storage.errors import ResumeError
from storage.hashes import Hashes


class TokenBatchSampler:
    """The batches that one rank has still to train on in the current epoch: a `batch_sampler` for torch's DataLoader.

    Iterating changes nothing, since a DataLoader draws batches ahead of the training loop; `advance` says that the loop
    has consumed one (`storage.dataset.HiddenStateLoader` calls it). Together the ranks have each row of an epoch once,
    in as many batches each, unless there are fewer rows than that takes.

    Args:
        hashes: uint8[n, 32], the sample hash of each row of the dataset.
        lengths: int64[n], tokens of each row.
        rules: how rows become batches.
        rank: number of this process among those that train together.
        world_size: number of those processes.

    Attributes:
        epoch: the current epoch, from 0.

    Raises:
        ValueError: `rank` is not in 0..world_size - 1.
    """

    def __init__(self, hashes: Hashes, lengths: Rows, rules: BatchRules, *, rank: int = 0, world_size: int = 1) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}, world_size {world_size}; give a rank in 0..world_size - 1")
        self.epoch = 0
        self.rank = rank
        self.world_size = world_size
        self._hashes = hashes
        self._lengths = lengths
        self._rules = rules
        self._data = _digest_of(hashes, lengths, rules)
        self._batches: tuple[int, list[Rows]] | None = None
        # Each time that training went on with another number of processes: that number, and the steps they made.
        self._steps: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self._left()[self.rank :: self.world_size]:
            yield batch.tolist()

    def __len__(self) -> int:
        return len(range(self.rank, len(self._left()), self.world_size))

    def advance(self) -> None:
        """Count one more batch of each rank as consumed."""
        if not self._steps or self._steps[-1][0] != self.world_size:
            self._steps.append((self.world_size, 0))
        self._steps[-1] = (self.world_size, self._steps[-1][1] + 1)

    def next_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.epoch += 1
        self._steps = []

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands, as JSON values; it is the same on all ranks after the same number of steps."""
        return {"epoch": self.epoch, "steps": [list(made) for made in self._steps], "data": self._data}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict` was taken, with any number of ranks.

        Raises:
            ResumeError: it was taken with other rows or other rules, so the batches were others.
        """
        if state["data"] != self._data:
            raise ResumeError(
                f"the state is of data {state['data'][:12]}, this is {self._data[:12]}: rows, their order or the rules "
                "of batches differ; use those of then, or start anew"
            )
        self.epoch = state["epoch"]
        self._steps = [(ranks, steps) for ranks, steps in state["steps"]]

    def _left(self) -> list[Rows]:
        """Return the batches that no rank has consumed."""
        if self._batches is None or self._batches[0] != self.epoch:
            self._batches = self.epoch, make_batches(self._hashes, self._lengths, self._rules, self.epoch)
        left = self._batches[1]
        for ranks, steps in self._steps:
            left = self._split(left, ranks)[ranks * steps :]
        return left if self._steps and self._steps[-1][0] == self.world_size else self._split(left, self.world_size)

    def _split(self, batches: list[Rows], ranks: int) -> list[Rows]:
        return split_batches(batches, self._lengths, self._rules.max_padding, ranks)


def _digest_of(hashes: Hashes, lengths: Rows, rules: BatchRules) -> str:
    digest = hashlib.sha256(canonical_json(asdict(rules)))
    digest.update(hashes.tobytes())
    digest.update(lengths.astype("<i8").tobytes())
    return digest.hexdigest()
