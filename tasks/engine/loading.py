"""Load an engine: the order of steps matters, since SGLang looks at the machine while it is imported."""

from tasks.engine import cpu_kernels
from tasks.engine.base import EngineOptions
from tasks.engine.canary import ReadableEngine
from tasks.engine.version import check_version


def load_engine(options: EngineOptions) -> ReadableEngine:
    """Start SGLang for one model in this process.

    Raises:
        EngineError: the SGLang version, the model folder or the architecture is not one we can run.
    """
    check_version()
    if options.device == "cpu":
        cpu_kernels.install()
    from tasks.engine.sglang_engine import SGLangEngine  # noqa: PLC0415 - imports SGLang, so only after the above

    return SGLangEngine(options)
