"""Extract: one unit of work, on whichever engine is idle."""

import contextlib

import numpy as np
import numpy.typing as npt
from prefect import task

from tasks import messages
from tasks.engine.errors import DeviceTakenError
from tasks.engine_pool import EnginePool
from tasks.engine_process import OnEvent
from tasks.policy import RETRY_DEAD_ENGINE, STORE_IS_THE_CACHE


def extract_unit(samples: npt.NDArray[np.int64], engines: EnginePool, on_event: OnEvent) -> messages.UnitDone:
    """Compute and commit the samples that the store lacks.

    Args:
        samples: indexes into the tokens artifact: int64[n]. An array, since Prefect walks through lists.
        engines: the run's engine processes.
        on_event: gets the messages of the worker, on this thread or on that of the unit before or after.

    Raises:
        EngineError, StorageError: the work cannot go on, or no device came free.
        WorkerError, RankLostError: the engine process died; trying again continues.
    """
    while True:
        # Another run may be quicker to take the engine's devices; then there is another engine, or a time to wait.
        with engines.lease(on_event) as lease, contextlib.suppress(DeviceTakenError):
            return lease.engine.run_unit(samples.tolist(), on_event, lease.end)


extract = task(name="extract", **RETRY_DEAD_ENGINE, **STORE_IS_THE_CACHE)(extract_unit)
