"""What a batch has computed on its device: the forward, the checks of its states, and their split for the store."""

from collections.abc import Sequence

import torch

from tasks.clocks import Clock
from tasks.device_split import split_states
from tasks.engine.base import Engine
from tasks.engine.errors import EngineOutOfMemoryError
from tasks.faults import flag_rows
from tasks.rechecks import recheck
from tasks.write_path import Batch
from tasks.writer import Sample


class Launcher:
    """Launches batches; on a GPU each call returns before its batch is computed.

    Args:
        engine: runs the forwards.
        clock: of its device.
        recheck_share: of all samples, those that are computed again alone.
        splits: states are split for `ObjectWriter.write_split`.
    """

    def __init__(self, engine: Engine, clock: Clock, *, recheck_share: float, splits: bool) -> None:
        self.engine = engine
        self._clock = clock
        self._recheck_share = recheck_share
        self._splits = splits

    def launch(self, samples: Sequence[Sample], hashes: Sequence[str]) -> Batch:
        """Launch one batch; `hashes` are those of its samples.

        Raises:
            EngineOutOfMemoryError: the device has no room for it.
            EngineStateError: the forward gave something other than one row a token.
        """
        began = self._clock.mark()
        sequences = [sample.input_ids for sample in samples]
        lengths = [len(ids) for ids in sequences]
        states = self.engine.forward(sequences)
        try:
            flags = flag_rows(states, self.engine.options.layers)
            rechecks = recheck(self.engine, sequences, states, hashes, self._recheck_share)
            pieces = split_states(states, lengths) if self._splits else torch.split(states, lengths)
        except torch.OutOfMemoryError as error:
            raise EngineOutOfMemoryError(
                f"the states of a batch of {sum(lengths)} tokens have no room on the device ({error}); "
                "lower max_batch_tokens"
            ) from error
        return Batch(samples, pieces, flags, rechecks, began, self._clock.mark())
