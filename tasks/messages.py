"""What an engine process and its parent say to each other: one JSON object a message, never an array of states."""

import json
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Start:
    """First message to the worker: what to load and where to write.

    Paths are strings, layers a list of ids, `gpus` the UUIDs of the GPUs that the worker is to claim. The tokens of a
    batch are found among `batch_candidates`, if there are any; `max_batch_tokens` is what the engine has room for.
    """

    model: str
    layers: list[int | str]
    compute_dtype: str
    quantization: str | None
    deterministic: bool
    device: str
    gpus: list[str]
    tp_size: int
    ep_size: int
    max_batch_tokens: int
    batch_candidates: list[int]
    store: str
    spec_digest: str
    tokens_digest: str
    encode_threads: int
    max_in_flight_bytes: int
    recheck_fraction: float
    max_growth_bytes: int | None
    trace: str | None
    parent_pid: int


@dataclass(frozen=True, slots=True)
class RunUnit:
    """To the worker: compute these samples (indexes into the tokens artifact) as the unit `number`."""

    number: int
    samples: list[int]


@dataclass(frozen=True, slots=True)
class Stop:
    """To the worker: free the model and exit."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What an engine process does now, for people to see; the parent adds which `engine` it is."""

    name: str
    engine: str = ""


@dataclass(frozen=True, slots=True)
class BatchStarted:
    """From the worker: a forward begins; the parent knows from it how long silence is no worry."""

    num_tokens: int


@dataclass(frozen=True, slots=True)
class Committed:
    """From the worker: one sample is in the store; `existed` when another process was first."""

    sample_hash: str
    num_tokens: int
    raw_bytes: int
    stored_bytes: int
    existed: bool


@dataclass(frozen=True, slots=True)
class Quarantined:
    """From the worker: one sample was not stored, and why."""

    sample_hash: str
    num_tokens: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class UnitComputed:
    """From the worker: the forward has no more to do for the unit, and may have another; its states are being written.

    Attributes:
        number: which unit.
        outgrown: what says that the process's memory has grown past the limit since its first unit; empty while it has
            not. It should get no further unit.
    """

    number: int
    outgrown: str


@dataclass(frozen=True, slots=True)
class UnitDone:
    """From the worker: all samples of the unit, and of those before, are committed or quarantined.

    Attributes:
        number: which unit.
        forward_seconds: time in the model, by the clock of the device.
        wait_seconds: time in which the device had nothing to do because states waited to be written.
        peak_memory_bytes: most memory that the process has had; of several ranks, that of the first.
        peak_device_bytes: the same on its GPU.
    """

    number: int
    forward_seconds: float
    wait_seconds: float
    peak_memory_bytes: int
    peak_device_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """From the worker: it cannot go on; `kind` names the error class."""

    kind: str
    message: str


Message = Start | RunUnit | Stop | Phase | BatchStarted | Committed | Quarantined | UnitComputed | UnitDone | Failed
_TYPES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Start, RunUnit, Stop, Phase, BatchStarted, Committed, Quarantined, UnitComputed, UnitDone, Failed)
}


def encode(message: Message) -> bytes:
    """Turn a message into bytes for the pipe."""
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def decode(data: bytes) -> Message:
    """Turn bytes from the pipe into a message."""
    name, fields = json.loads(data)
    message: Message = _TYPES[name](**fields)
    return message
