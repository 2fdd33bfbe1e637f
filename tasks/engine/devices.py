"""Device strings (`auto`, `cpu`, `0,1`, `0-7:tp2`) to device groups, without importing torch or starting CUDA."""

import os
import re
from dataclasses import dataclass
from typing import Literal

from tasks.engine.errors import DeviceError

_GRAMMAR = "auto, all, cpu, or GPU numbers such as 0,1 or 0-3, with :tp<n> for groups of n GPUs"
_TENSOR_PARALLEL = re.compile(r"(.*):tp([1-9][0-9]?)")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")


@dataclass(frozen=True)
class DeviceGroup:
    """The devices of one engine process; `indices` count within what this process sees, as torch's do."""

    name: str
    kind: Literal["cpu", "cuda"]
    indices: tuple[int, ...]


def parse_devices(text: str, visible: tuple[str, ...] | None = None) -> tuple[DeviceGroup, ...]:
    """Parse a device string to one group an engine process; `visible` is `visible_gpus()` unless given.

    Raises:
        DeviceError: the string is malformed, or names a GPU that does not exist or is given twice.
    """
    selection, tp_size = _split_tp_size(text.strip())
    if selection == "cpu" and tp_size is None:
        return (DeviceGroup("cpu", "cpu", ()),)
    gpus = visible_gpus() if visible is None else visible
    if selection == "auto" and not gpus and tp_size is None:
        return (DeviceGroup("cpu", "cpu", ()),)
    indices = tuple(range(len(gpus))) if selection in ("auto", "all") else _parse_indices(selection)
    _check(text, indices, len(gpus))
    return _groups(text, indices, tp_size or 1)


def environment(group: DeviceGroup, visible: tuple[str, ...] | None = None) -> dict[str, str]:
    """Return the variables by which an engine process sees the devices of `group`, and no other GPU."""
    if group.kind == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    gpus = visible_gpus() if visible is None else visible
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[index] for index in group.indices)}
    # Without it CUDA counts the fastest GPU first, where NVML and nvidia-smi count by bus. Whoever chose the visible
    # GPUs already, chose them in CUDA's order.
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return variables


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that CUDA would show this process, as entries of CUDA_VISIBLE_DEVICES.

    As CUDA does (CUDA C++ Programming Guide, environment variables), entries from the first invalid one on are ignored.

    Raises:
        DeviceError: there is a GPU driver, but it does not answer.
    """
    count = _gpu_count()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple(str(index) for index in range(count))
    gpus: list[str] = []
    for entry in (part.strip() for part in chosen.split(",")):
        if not _exists(entry, count):
            break
        gpus.append(entry)
    return tuple(gpus)


def _exists(entry: str, count: int) -> bool:
    if entry.startswith(("GPU-", "MIG-")):
        return count > 0
    return entry.isdecimal() and int(entry) < count


def _gpu_count() -> int:
    import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - `cpu` needs nothing of NVIDIA's

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return 0
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver does not answer ({error}); repair it, or choose devices cpu") from error
    try:
        return int(pynvml.nvmlDeviceGetCount())
    finally:
        pynvml.nvmlShutdown()


def _split_tp_size(text: str) -> tuple[str, int | None]:
    match = _TENSOR_PARALLEL.fullmatch(text)
    return (match[1], int(match[2])) if match else (text, None)


def _parse_indices(selection: str) -> tuple[int, ...]:
    indices: list[int] = []
    for part in selection.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise DeviceError(f"devices {selection!r}: {part!r} is not understood; write {_GRAMMAR}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise DeviceError(f"devices {selection!r}: the range {part!r} runs backwards; write {last}-{first}")
        indices.extend(range(first, last + 1))
    return tuple(indices)


def _check(text: str, indices: tuple[int, ...], num_gpus: int) -> None:
    if num_gpus == 0:
        raise DeviceError(f"devices {text!r}: this process sees no GPU; choose devices cpu, or see nvidia-smi")
    for position, index in enumerate(indices):
        if index >= num_gpus:
            raise DeviceError(f"devices {text!r}: GPU {index} does not exist; GPUs 0..{num_gpus - 1} are visible")
        if index in indices[:position]:
            raise DeviceError(f"devices {text!r}: GPU {index} is given twice; keep one")


def _groups(text: str, indices: tuple[int, ...], tp_size: int) -> tuple[DeviceGroup, ...]:
    if len(indices) % tp_size:
        raise DeviceError(
            f"devices {text!r}: {len(indices)} GPUs cannot be cut into groups of {tp_size}; add or drop some"
        )
    cuts = (indices[start : start + tp_size] for start in range(0, len(indices), tp_size))
    return tuple(DeviceGroup("gpu-" + "-".join(map(str, cut)), "cuda", cut) for cut in cuts)
