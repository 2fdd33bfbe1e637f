"""The GPUs of this host that CUDA would show this process, without starting CUDA."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.engine.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG slice of one.

    Attributes:
        entry: what CUDA_VISIBLE_DEVICES calls it.
        uuid: what the driver calls it: the same in every process of the host.
    """

    entry: str
    uuid: str


def visible_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA would show this process, in its order.

    Raises:
        DeviceError: there is a GPU driver, but it does not answer.
    """
    uuids = _gpu_uuids()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    return choose_gpus(",".join(map(str, range(len(uuids)))) if chosen is None else chosen, uuids)


def choose_gpus(chosen: str, uuids: Sequence[str]) -> tuple[Gpu, ...]:
    """Return what `chosen`, a CUDA_VISIBLE_DEVICES, chooses among the host's GPUs, given by UUID in bus order.

    As CUDA does (CUDA C++ Programming Guide, environment variables), a GPU may be named by its number or the beginning
    of its UUID, and entries from the first invalid one on are ignored. On a host with GPUs of several models CUDA
    counts the fastest first unless CUDA_DEVICE_ORDER says PCI_BUS_ID; a number may then get the UUID of another.
    """
    gpus: list[Gpu] = []
    for entry in (part.strip() for part in chosen.split(",")):
        uuid = _find_uuid(entry, uuids)
        if uuid is None:
            break
        gpus.append(Gpu(entry, uuid))
    return tuple(gpus)


def _find_uuid(entry: str, uuids: Sequence[str]) -> str | None:
    if entry.startswith("MIG-"):
        return entry if uuids else None
    if entry.startswith("GPU-"):
        found = [uuid for uuid in uuids if uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    return uuids[int(entry)] if entry.isdecimal() and int(entry) < len(uuids) else None


def _gpu_uuids() -> list[str]:
    import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - `cpu` needs nothing of NVIDIA's

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver does not answer ({error}); repair it, or choose devices cpu") from error
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [str(pynvml.nvmlDeviceGetUUID(handle)) for handle in handles]
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver does not answer ({error}); repair it, or choose devices cpu") from error
    finally:
        pynvml.nvmlShutdown()
