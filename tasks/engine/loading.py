"""Load an engine, over one device or several."""

from tasks.engine.base import EngineOptions, ReadableEngine
from tasks.engine.models import read_model
from tasks.engine.precision import AUTO, choose_precision
from tasks.engine.rank_counts import check_ranks
from tasks.engine.ranks import find_free_port, load_rank
from tasks.engine.tensor_parallel import OnLost, TensorParallelEngine, end_process


def load_engine(options: EngineOptions, on_lost: OnLost = end_process) -> ReadableEngine:
    """Start SGLang for one model; with `tp_size` over 1, on as many GPUs, one process each, this one the first.

    Args:
        options: what it is started with.
        on_lost: called by a thread when one of the other processes is gone; must end this one.

    Raises:
        EngineError: the SGLang version, the model folder, the architecture, the precision or the number of ranks is not
            one we can run.
        ModelLoadError: SGLang could not load the model.
    """
    split = options.tp_size // options.ep_size
    model = read_model(options.model)
    check_ranks(model, options.device, options.tp_size, options.ep_size)
    choose_precision(model, options.device, options.compute_dtype, options.quantization or AUTO, split)
    if options.tp_size > 1:
        return TensorParallelEngine(options, on_lost)
    return load_rank(options, 0, find_free_port())
