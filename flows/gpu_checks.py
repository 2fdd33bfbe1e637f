"""What `aerie doctor` looks at of GPUs: driver, GPUs, CUDA toolkit; neither torch nor CUDA is started."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from flows.diagnosis import Check, failed, passed, warned
from flows.progress import format_bytes
from tasks.engine.errors import DeviceError
from tasks.engine.gpus import visible_gpus

# torch for CUDA 13 has no code for what is older; before 8.0 no GPU computes bfloat16.
LEAST_CAPABILITY, BFLOAT16_CAPABILITY = (7, 5), (8, 0)
_USE_CPU = "choose devices cpu, which is slow, or take a machine with an NVIDIA GPU"
INSTALL = "pip install '.[gpu]'"
_RELEASE = re.compile(r"release (\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU of the host: its name, its memory in bytes, how much of that is free, and its compute capability."""

    name: str
    total: int
    free: int
    capability: tuple[int, int]


@dataclass(frozen=True, slots=True)
class DriverFacts:
    """The driver: its version, the newest CUDA release that it runs, and its GPUs."""

    version: str
    cuda: str
    gpus: tuple[GpuFacts, ...]


def read_driver() -> DriverFacts | None:
    """Ask the NVIDIA driver; None where there is none.

    Raises:
        DeviceError: there is one, and it does not answer.
    """
    import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - only where GPUs are of interest

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver does not answer ({error})") from error
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        cuda = f"{number // 1000}.{number % 1000 // 10}"
        version = str(pynvml.nvmlSystemGetDriverVersion())
        return DriverFacts(version, cuda, tuple(_facts(pynvml, one) for one in handles))
    except pynvml.NVMLError as error:
        raise DeviceError(f"the NVIDIA driver does not answer ({error})") from error
    finally:
        pynvml.nvmlShutdown()


def check_gpus(torch_cuda: str | None) -> Iterator[Check]:
    """Look at driver, GPUs and toolkit.

    Args:
        torch_cuda: the CUDA release that torch is built for; None if it is built without.
    """
    try:
        driver = read_driver()
        num_visible = len(visible_gpus()) if driver else 0
    except DeviceError as error:
        yield failed("GPU driver", str(error), f"repair it, or {_USE_CPU}")
        return
    if driver is None or not driver.gpus:
        yield warned("GPU", "none", f"states are computed on the CPU; {_USE_CPU}")
        return
    yield judge_driver(driver, torch_cuda)
    yield judge_gpus(driver.gpus, num_visible)
    yield judge_toolkit(find_nvcc(), torch_cuda)


def judge_driver(driver: DriverFacts, torch_cuda: str | None) -> Check:
    """Say whether the driver runs what torch is built for: any CUDA of the same major release."""
    text = f"{driver.version}, for CUDA {driver.cuda}"
    if torch_cuda is None:
        return failed("GPU driver", f"{text}; torch is built without CUDA", f"{INSTALL}, in a fresh environment")
    if Version(driver.cuda).major < Version(torch_cuda).major:
        need = f"install a driver for CUDA {Version(torch_cuda).major} or newer"
        return failed("GPU driver", f"{text}; torch is built for CUDA {torch_cuda}", need)
    return passed("GPU driver", f"{text}; torch is built for CUDA {torch_cuda}")


def judge_gpus(gpus: tuple[GpuFacts, ...], num_visible: int) -> Check:
    """Say whether the GPUs can compute what is asked of them."""
    names = {f"{one.name}, {format_bytes(one.total)}, capability {'.'.join(map(str, one.capability))}" for one in gpus}
    free = ", ".join(format_bytes(one.free) for one in gpus)
    text = f"{len(gpus)} x {'; '.join(sorted(names))}; free: {free}"
    if not num_visible:
        return warned("GPU", f"{text}; CUDA_VISIBLE_DEVICES shows none", "unset CUDA_VISIBLE_DEVICES, or name some")
    text += "" if num_visible == len(gpus) else f"; CUDA_VISIBLE_DEVICES shows {num_visible}"
    worst = min(one.capability for one in gpus)
    if worst < LEAST_CAPABILITY:
        return failed("GPU", text, "take a GPU of capability 7.5 or newer")
    if worst < BFLOAT16_CAPABILITY:
        return warned("GPU", text, "take a GPU of capability 8.0 or newer for bfloat16, or use --dtype float16")
    return passed("GPU", text)


def judge_toolkit(nvcc: Path | None, torch_cuda: str | None) -> Check:
    """Say whether kernels can be compiled: with the CUDA of torch, by nvcc and a C++ compiler."""
    name, why = "CUDA toolkit", "Marlin (W4A16) and what rounds to FP8 are compiled when first needed"
    if nvcc is None:
        return warned(name, "no nvcc", f"install the CUDA toolkit, or set CUDA_HOME: {why}")
    release = _release(nvcc)
    if release is None:
        return warned(name, f"{nvcc} does not run", f"repair it: {why}")
    if torch_cuda is not None and Version(release).major != Version(torch_cuda).major:
        return warned(name, f"{nvcc}, CUDA {release}", f"install that of CUDA {torch_cuda}, as torch: {why}")
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        return warned(name, f"{nvcc}, CUDA {release}, and no C++ compiler", f"install g++: {why}")
    return passed(name, f"{nvcc}, CUDA {release}")


def find_nvcc() -> Path | None:
    """Return the nvcc that SGLang's compiler of kernels (tvm_ffi) would take."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    known = shutil.which("nvcc") if home is None else None
    nvcc = Path(known) if known else Path(home or "/usr/local/cuda", "bin", "nvcc")
    return nvcc if nvcc.exists() else None


def _release(nvcc: Path) -> str | None:
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603 - the user's compiler
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _RELEASE.search(done.stdout)
    return found[1] if found and done.returncode == 0 else None


def _facts(pynvml: Any, handle: Any) -> GpuFacts:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    return GpuFacts(str(name), int(memory.total), int(memory.free), (int(major), int(minor)))
