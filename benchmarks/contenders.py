"""Ways from token ids to states in files, which are timed beside each other: ours, and what others' scripts do.

The others are written from what is known of them: batches in the order of the data, padded to their longest sequence,
whose padding is computed and stored; `.cpu()` of one sample after the other, which waits for the forward and goes
through pageable memory; `torch.save` of each in a file of its own, on threads, uncompressed and never synced.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from extraction_models import Subject

from storage.files import folder_bytes
from storage.layout import objects_folder
from tasks import messages
from tasks.batches import make_batches
from tasks.engine.reference_engine import ReferenceEngine

Ids = npt.NDArray[np.int32]
PADDING = 2
# In which ours is given its samples, so that one is written while the other is computed.
UNITS = 2


class Contenders:
    """The ways, each a method that runs it over its samples and leaves files in a folder of its own.

    Args:
        subject: model, samples and engine.
        folder: where the others' files go.
        share: the others run every so manieth sample, since they take as many times longer.
        reference: run by transformers too.
    """

    def __init__(self, subject: Subject, folder: Path, share: int, *, reference: bool) -> None:
        self._subject = subject
        self.folder = folder
        self._max_tokens = subject.start.max_batch_tokens
        self._sequences = [subject.tokens.input_ids(index) for index in range(len(subject.tokens.sample_hashes))]
        self._few = self._sequences[::share]
        self._units = 0
        self._reference = ReferenceEngine(subject.engine.options) if reference else None

    def ways(self) -> dict[str, Callable[[], object]]:
        """Return what to run, by name."""
        found: dict[str, Callable[[], object]] = {
            "forward": self.run_forward,
            "ours": self.run_ours,
            "torch.save": self.run_unpadded,
            "torch.save, padded": self.run_padded,
        }
        return found | ({"transformers": self.run_reference} if self._reference else {})

    def num_tokens(self, name: str) -> int:
        """Return how many real tokens a way runs."""
        return sum(map(len, self._sequences if name in {"forward", "ours"} else self._few))

    def stored_bytes(self, name: str) -> int:
        """Return the size of what a way has left."""
        if name == "forward":
            return 0
        return folder_bytes(self._objects if name == "ours" else self.folder)

    def clear(self) -> None:
        """Remove what all have left; nothing waits to be written after this."""
        shutil.rmtree(self._objects, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._subject.said.clear()
        os.sync()

    def close(self) -> None:
        """Free transformers' model."""
        if self._reference is not None:
            self._reference.close()

    def run_forward(self) -> None:
        """Run SGLang's forward alone, in the batches that ours has; states are dropped where they are."""
        for unit in self._cut():
            for batch in self._batches([self._sequences[index] for index in unit]):
                self._subject.engine.forward(batch)

    def run_ours(self) -> None:
        """Run two units as an engine process does: checked, compressed, committed and synced when this returns."""
        for unit in self._cut():
            self._units += 1
            self._subject.worker.run_unit(messages.RunUnit(self._units, unit))
        self._subject.worker.drain()

    def run_unpadded(self) -> None:
        """Run the same batches as ours; `.cpu()` and `torch.save` a sample."""
        with ThreadPoolExecutor(8) as pool:
            saved: list[Future[object]] = []
            for batch in self._batches(self._few):
                states = self._subject.engine.forward(batch)
                for rows in torch.split(states, [len(ids) for ids in batch]):
                    saved.append(pool.submit(torch.save, {"hidden_states": rows.cpu().clone()}, self._next_file(saved)))
            _check(saved)

    def run_padded(self) -> None:
        """Run batches in the order of the data, padded; `.cpu()` and `torch.save` a padded sample."""
        with ThreadPoolExecutor(8) as pool:
            saved: list[Future[object]] = []
            for batch in self._padded_batches():
                states = self._subject.engine.forward(batch)
                for rows in torch.split(states, len(batch[0])):
                    saved.append(pool.submit(torch.save, {"hidden_states": rows.cpu().clone()}, self._next_file(saved)))
            _check(saved)

    def run_reference(self) -> None:
        """Run transformers with `output_hidden_states`, one sequence at a time; `.cpu()` and `torch.save` a sample."""
        assert self._reference is not None  # noqa: S101 - else it is no way
        with ThreadPoolExecutor(8) as pool:
            saved: list[Future[object]] = []
            for ids in self._few:
                rows = self._subject.engine.gauge(self._reference.forward, [ids]).cpu()
                saved.append(pool.submit(torch.save, {"hidden_states": rows}, self._next_file(saved)))
            _check(saved)

    def padding_share(self) -> float:
        """Return the share of padding in what the padded way computes."""
        return 1 - self.num_tokens("padded") / sum(len(ids) for batch in self._padded_batches() for ids in batch)

    @property
    def _objects(self) -> Path:
        return Path(str(objects_folder(self._subject.store.path, self._subject.store.spec_digest)))

    def _cut(self) -> list[list[int]]:
        return [part.tolist() for part in np.array_split(np.arange(len(self._sequences)), UNITS)]

    def _batches(self, sequences: Sequence[Ids]) -> list[list[Ids]]:
        lengths = [len(ids) for ids in sequences]
        most = self._subject.engine.options.max_sequences
        return [
            [sequences[place] for place in batch]
            for batch in make_batches(lengths, max_tokens=self._max_tokens, max_sequences=most)
        ]

    def _padded_batches(self) -> list[list[Ids]]:
        batches: list[list[Ids]] = []
        most = self._subject.engine.options.max_sequences
        for ids in self._few:
            longest = max(map(len, [*batches[-1], ids])) if batches else 0
            if not batches or longest * (len(batches[-1]) + 1) > self._max_tokens or len(batches[-1]) == most:
                batches.append([])
            batches[-1].append(ids)
        return [_pad(batch) for batch in batches]

    def _next_file(self, saved: Sequence[object]) -> Path:
        return self.folder / f"{len(saved)}.pt"


def _pad(batch: Sequence[Ids]) -> list[Ids]:
    longest = max(map(len, batch))
    return [np.pad(ids, (0, longest - len(ids)), constant_values=PADDING) for ids in batch]


def _check(saved: Sequence[Future[object]]) -> None:
    done, _ = wait(saved)
    for one in done:
        one.result()
