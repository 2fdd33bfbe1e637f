"""The one SGLang release this code is written for."""

import importlib.metadata

from tasks.engine.errors import EngineVersionError

SGLANG_VERSION = "0.5.17"


def check_version() -> str:
    """Return the installed SGLang version without importing SGLang.

    Raises:
        EngineVersionError: SGLang is missing or not `SGLANG_VERSION`.
    """
    cure = f"pip install sglang=={SGLANG_VERSION}"
    try:
        version = importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        raise EngineVersionError(f"sglang is not installed; {cure}") from None
    if version != SGLANG_VERSION:
        raise EngineVersionError(
            f"sglang {version} is installed, {SGLANG_VERSION} is needed, since its internals change with each "
            f"release; {cure}"
        )
    return version
