"""Extract: one unit of work, on whichever engine is idle."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from prefect import get_run_logger, task

from tasks import messages
from tasks.device_slots import DeviceSlots
from tasks.engine.errors import DeviceTakenError
from tasks.engine_pool import EnginePool
from tasks.engine_process import OnEvent
from tasks.errors import WorkerError
from tasks.policy import RETRY_WHAT_MAY_PASS, STORE_IS_THE_CACHE
from tasks.unit_log import UnitLog, last_lines

NO_SLOTS = DeviceSlots(None)


def extract_unit(
    samples: npt.NDArray[np.int64],
    engines: EnginePool,
    on_event: OnEvent,
    slots: DeviceSlots = NO_SLOTS,
    log: Callable[[str], object] = lambda _: None,
) -> messages.UnitDone:
    """Compute and commit the samples that the store lacks.

    Args:
        samples: indexes into the tokens artifact: int64[n]. An array, since Prefect walks through lists.
        engines: the run's engine processes.
        on_event: gets the messages of the worker, on this thread or on that of the unit before or after.
        slots: those of the run, on Prefect's server.
        log: gets lines for people about this unit.

    Raises:
        EngineError, StorageError: the work cannot go on, or no device came free.
        WorkerError, RankLostError: the engine process died; trying again continues.
    """
    while True:
        with engines.lease(on_event) as lease:
            engine = lease.engine
            ear = UnitLog(log, engine.counts, on_event)
            slots.hold(engine.group.name, log)
            try:
                done = engine.run_unit(samples.tolist(), ear, lease.end)
            except DeviceTakenError:
                # Another run was quicker to take the engine's devices; there is another engine, or a time to wait.
                slots.release(engine.group.name)
                continue
            ear.close(done)
            return done


def _extract(
    samples: npt.NDArray[np.int64], engines: EnginePool, on_event: OnEvent, slots: DeviceSlots
) -> messages.UnitDone:
    """Run the unit with the log of its task run; of an engine that died, the last lines of its own log go there."""
    logger = get_run_logger()
    try:
        return extract_unit(samples, engines, on_event, slots, logger.info)
    except WorkerError as error:
        if not engines.is_over:  # else it was the run that ended it
            logger.warning("last lines of %s:\n%s", error.log_path, last_lines(error.log_path))
        raise


extract = task(name="extract", **RETRY_WHAT_MAY_PASS, **STORE_IS_THE_CACHE)(_extract)
