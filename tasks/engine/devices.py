"""Device strings (`auto`, `cpu,cpu`, `0-7:tp4:ep2`) to device groups, without importing torch or starting CUDA."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tasks.engine.errors import DeviceError
from tasks.engine.gpus import Gpu, visible_gpus

_GRAMMAR = (
    "auto, all, cpu (cpu,cpu for two engines), or GPU numbers such as 0,1 or 0-3; then :tp<n> for groups of n that "
    "share a model, :ep<n> for n parts of its experts"
)
_LAYOUT = re.compile(r"(.*?)(?::tp([1-9][0-9]?))?(?::ep([1-9][0-9]?))?")
_RANGE = re.compile(r"([0-9]{1,4})(?:-([0-9]{1,4}))?")
# What a form can refuse by itself: the grammar, without the GPUs that there are.
DEVICES_PATTERN = r"^\s*(auto|all|((cpu|\d+(-\d+)?)\s*(,\s*(?!$)|(?=$|:)))+)(:tp\d+)?(:ep\d+)?\s*$"


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """The devices of one engine process.

    Attributes:
        name: distinct among the groups of a run.
        kind: `cpu`, or `cuda` for GPUs.
        gpus: its GPUs; none on the CPU.
        tp_size: ranks that share the model, each on a GPU of its own, or all on the CPU.
        ep_size: parts into which the experts are dealt among the ranks; divides `tp_size`.
        num_threads: CPU threads of a rank; None leaves that to torch.
    """

    name: str
    kind: Literal["cpu", "cuda"]
    gpus: tuple[Gpu, ...] = ()
    tp_size: int = 1
    ep_size: int = 1
    num_threads: int | None = None


def parse_devices(text: str, visible: tuple[Gpu, ...] | None = None) -> tuple[DeviceGroup, ...]:
    """Parse a device string to one group an engine process; `visible` is `visible_gpus()` unless given.

    Raises:
        DeviceError: the string is malformed, or names a GPU that does not exist or is given twice.
    """
    selection, tp_size, ep_size = _split_layout(text)
    parts = [part.strip() for part in selection.split(",")]
    if set(parts) == {"cpu"}:
        return _cpu_groups(text, len(parts), tp_size, ep_size)
    gpus = visible_gpus() if visible is None else visible
    if text.strip() == "auto" and not gpus:
        return _cpu_groups(text, 1, tp_size, ep_size)
    indices = tuple(range(len(gpus))) if selection in ("auto", "all") else _parse_indices(selection, parts)
    _check(text, indices, len(gpus))
    if len(indices) % tp_size:
        raise DeviceError(
            f"devices {text!r}: {len(indices)} GPUs cannot be cut into groups of {tp_size}; add or drop some"
        )
    cuts = (indices[start : start + tp_size] for start in range(0, len(indices), tp_size))
    return tuple(_gpu_group(cut, gpus, ep_size) for cut in cuts)


def layout_of(text: str) -> DeviceGroup:
    """Return one device group as a device string asks for it on another host: of GPUs, unless it says cpu.

    Raises:
        DeviceError: the string is malformed.
    """
    selection, tp_size, ep_size = _split_layout(text)
    is_cpu = {part.strip() for part in selection.split(",")} == {"cpu"}
    return DeviceGroup("elsewhere", "cpu" if is_cpu else "cuda", (), tp_size, ep_size)


def environment(group: DeviceGroup) -> dict[str, str]:
    """Return the variables by which an engine process sees the devices of `group`, and no other GPU."""
    if group.kind == "cpu":
        variables = {"CUDA_VISIBLE_DEVICES": ""}
        if group.num_threads is not None and "OMP_NUM_THREADS" not in os.environ:
            variables["OMP_NUM_THREADS"] = str(group.num_threads)
        return variables
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpu.entry for gpu in group.gpus)}
    # Without it CUDA counts the fastest GPU first, where NVML and nvidia-smi count by bus. Whoever chose the visible
    # GPUs already, chose them in CUDA's order.
    if "CUDA_VISIBLE_DEVICES" not in os.environ:
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    return variables


def num_cores() -> int:
    """Return how many CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _split_layout(text: str) -> tuple[str, int, int]:
    match = _LAYOUT.fullmatch(text.strip())
    if match is None:  # a line break within
        raise DeviceError(f"devices {text!r} is not understood; write {_GRAMMAR}")
    tp_size, ep_size = int(match[2] or 1), int(match[3] or 1)
    if tp_size % ep_size:
        raise DeviceError(f"devices {text!r}: ep{ep_size} does not divide tp{tp_size}; choose an ep that does")
    return match[1], tp_size, ep_size


def _cpu_groups(text: str, count: int, tp_size: int, ep_size: int) -> tuple[DeviceGroup, ...]:
    """Give each engine, and each of its ranks, its share of the cores."""
    if ep_size > 1:  # its native experts take the mark of an expert elsewhere, -1, for an index
        raise DeviceError(f"devices {text!r}: SGLang cannot deal experts among ranks on a CPU; leave :ep{ep_size} out")
    ranks = count * tp_size
    share = None if ranks == 1 else max(1, num_cores() // ranks)
    names = ["cpu"] if count == 1 else [f"cpu-{number}" for number in range(count)]
    return tuple(DeviceGroup(name, "cpu", tp_size=tp_size, num_threads=share) for name in names)


def _gpu_group(indices: Sequence[int], gpus: Sequence[Gpu], ep_size: int) -> DeviceGroup:
    name = "gpu-" + "-".join(map(str, indices))
    return DeviceGroup(name, "cuda", tuple(gpus[index] for index in indices), len(indices), ep_size)


def _parse_indices(selection: str, parts: Sequence[str]) -> tuple[int, ...]:
    indices: list[int] = []
    for part in parts:
        match = _RANGE.fullmatch(part)
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
