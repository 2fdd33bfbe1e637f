"""Engine errors, each with a stable `kind` that survives the pipe between processes."""

from typing import ClassVar


class EngineError(Exception):
    """What the model forward can fail with; `kind` is stable, the message is one line with value, limit and cure."""

    kind: ClassVar[str] = "engine"


class ModelNotFoundError(EngineError):
    """The model folder does not exist."""

    kind = "model_not_found"


class NotAModelError(EngineError):
    """The folder exists but is not a Hugging Face model folder."""

    kind = "not_a_model"


class UnsupportedArchitectureError(EngineError):
    """No way is known to capture this architecture's hidden states."""

    kind = "unsupported_architecture"


class LayerError(EngineError):
    """A layer expression is malformed, out of range, or names a layer twice."""

    kind = "layer"


class DeviceError(EngineError):
    """A device string is malformed, or names a GPU that does not exist or is taken twice."""

    kind = "device"


class EngineVersionError(EngineError):
    """The installed engine package is missing or not the version this code was written for."""

    kind = "engine_version"


class EngineStateError(EngineError):
    """A forward failed; what the engine holds can no longer be trusted and it must be restarted."""

    kind = "engine_state"


class EngineOutOfMemoryError(EngineError):
    """A batch does not fit the device; a smaller one may."""

    kind = "out_of_memory"


_BY_KIND: dict[str, type[EngineError]] = {
    error.kind: error
    for error in (
        EngineError,
        ModelNotFoundError,
        NotAModelError,
        UnsupportedArchitectureError,
        LayerError,
        DeviceError,
        EngineVersionError,
        EngineStateError,
        EngineOutOfMemoryError,
    )
}


def error_from_kind(kind: str, message: str) -> EngineError:
    """Rebuild the error that another process sent as `kind` and message; an unknown kind becomes `EngineError`."""
    if kind in _BY_KIND:
        return _BY_KIND[kind](message)
    return EngineError(f"{kind}: {message}")
