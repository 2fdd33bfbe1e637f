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


class DeviceTakenError(EngineError):
    """A GPU is in use by an engine of another run on this host."""

    kind = "device_taken"


class EngineVersionError(EngineError):
    """The installed engine package is missing or not the version this code was written for."""

    kind = "engine_version"


class EngineStateError(EngineError):
    """A forward gave something other than one row a token."""

    kind = "engine_state"


class EngineOutOfMemoryError(EngineError):
    """A batch does not fit the device; a smaller one may."""

    kind = "out_of_memory"


class PrecisionError(EngineError):
    """The engine cannot compute this model in the dtype or with the quantization asked for."""

    kind = "precision"


class CanaryError(EngineError):
    """An engine computes other states than it must; nothing of it is kept."""

    kind = "canary"


class ModelLoadError(EngineError):
    """The engine could not load the model: damaged weights, a config it does not take, no room on the device."""

    kind = "model_load"


class RankLostError(EngineError):
    """A process that shares an engine's model is gone, and the engine with it; trying again starts another."""

    kind = "rank_lost"
