"""One rank of an engine, in this process. The order of steps matters: SGLang looks at the machine when imported."""

import logging
import os
import socket

from tasks.engine import cpu_kernels
from tasks.engine.base import EngineOptions, ReadableEngine
from tasks.engine.errors import EngineError, ModelLoadError
from tasks.engine.model_code import forbid_model_code
from tasks.engine.one_by_one import OneByOneEngine
from tasks.engine.version import check_version

_PORTS = range(20_000, 32_000)


def load_rank(options: EngineOptions, rank: int, port: int) -> ReadableEngine:
    """Start SGLang for one rank of a model in this process; returns once all `options.tp_size` ranks met at `port`.

    Raises:
        EngineError: the SGLang version, the model folder or the architecture is not one we can run.
        ModelLoadError: SGLang could not load the model.
    """
    try:
        return _load(options, rank, port)
    except EngineError:
        raise
    except Exception as error:  # whatever SGLang met: a second try would meet it again
        logging.getLogger(__name__).exception("loading failed")
        raise ModelLoadError(f"{options.model} cannot be loaded: {type(error).__name__}: {error}") from error


def _load(options: EngineOptions, rank: int, port: int) -> ReadableEngine:
    check_version()
    forbid_model_code()
    if options.device == "cpu":
        cpu_kernels.install()
        _let_ranks_meet_on_cpu(options.tp_size)
    # What linear attention keeps of its convolution; its kernels want it in the dtype of what they are given.
    os.environ["SGLANG_MAMBA_CONV_DTYPE"] = options.compute_dtype
    from tasks.engine.sglang_engine import SGLangEngine  # noqa: PLC0415 - imports SGLang, so only after the above

    engine = SGLangEngine(options, rank, port)
    return OneByOneEngine(engine) if options.deterministic and options.device == "cpu" else engine


def _let_ranks_meet_on_cpu(tp_size: int) -> None:
    """Have SGLang's ranks meet through gloo.

    With a torch built for CUDA it finds NCCL, and starts that with a CPU for a device (`PyNcclCommunicator`: "Expected
    a cuda device, but got: cpu"); without the library it leaves that out. It also wants one set of cores a rank, and
    binds to none of them without its own CPU kernels.
    """
    os.environ["SGLANG_NCCL_SO_PATH"] = "no NCCL on a CPU"
    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(tp_size))) if tp_size > 1 else ""


def find_free_port() -> int:
    """Return a loopback port for the ranks to meet at, some seconds from now, when SGLang is imported.

    Below those that the kernel gives to connections, and looked for from another place in each process, so that engines
    that start together do not take it from each other.

    Raises:
        ModelLoadError: every such port is taken.
    """
    start = os.getpid() % len(_PORTS)
    ports: list[int] = [*_PORTS[start:], *_PORTS[:start]]
    for port in ports:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ModelLoadError(f"none of the loopback ports {_PORTS[0]} to {_PORTS[-1]} is free; end what holds them")
