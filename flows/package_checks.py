"""What `aerie doctor` looks at of the packages: their versions against the pins, without importing them."""

import importlib.metadata
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from flows.diagnosis import Check, failed, passed
from flows.host_checks import DISTRIBUTION

# Looked at one by one; a release of SGLang needs one release of each.
NAMED = ("sglang", "torch", "transformers", "prefect")
# Of what SGLang pins: compiled code that its forward runs on a GPU.
KERNELS = ("sglang-kernel", "flashinfer-python", "apache-tvm-ffi", "sgl-deep-gemm", "nvidia-cutlass-dsl")
_CUDA = re.compile(r"^cuda\b[^=]*= '([\d.]+)'", re.MULTILINE)


def check_packages(*, has_gpu: bool) -> Iterator[Check]:
    """Compare what is installed with what Aerie, and on a GPU SGLang, asks for."""
    needed = _needs_of(DISTRIBUTION, "gpu")
    for name in NAMED:
        yield judge_package(needed[name], installed_version(name))
    yield _check_rest(one for name, one in needed.items() if name not in NAMED)
    yield _check_kernels() if has_gpu else passed("kernels", "not needed without a GPU")


def judge_package(need: Requirement, version: str | None) -> Check:
    """Say whether a version is one that is asked for."""
    if version is None:
        return failed(need.name, f"missing, {need.specifier} is needed", f"pip install '{need.name}{need.specifier}'")
    if not need.specifier.contains(Version(version), prereleases=True):
        return failed(need.name, f"{version}, {need.specifier} is needed", f"pip install '{need.name}{need.specifier}'")
    return passed(need.name, version)


def installed_version(name: str) -> str | None:
    """Return the version of a distribution; None where it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """Return the CUDA release that torch is built for, without importing it; None for a build without, or no torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    found = _CUDA.search((Path(spec.origin).parent / "version.py").read_text())
    return found[1] if found else None


def _check_rest(needs: Iterable[Requirement]) -> Check:
    checks = [judge_package(need, installed_version(need.name)) for need in needs]
    if bad := [check for check in checks if check.verdict != "pass"]:
        return failed("other packages", _join(bad), "; ".join(one.cure for one in bad))
    return passed("other packages", f"{len(checks)}, all as needed")


def _check_kernels() -> Check:
    needed = _needs_of("sglang") if installed_version("sglang") else {}
    checks = [judge_package(needed[name], installed_version(name)) for name in KERNELS if name in needed]
    if bad := [check for check in checks if check.verdict != "pass"]:
        return failed("kernels", _join(bad), "pip install '.[gpu]', in a fresh environment")
    return passed("kernels", _join(checks))


def _join(checks: Iterable[Check]) -> str:
    return ", ".join(f"{one.name} {one.value}" for one in checks)


def _needs_of(distribution: str, extra: str = "") -> dict[str, Requirement]:
    """Return what a distribution asks for on this machine, by name."""
    needs = map(Requirement, importlib.metadata.requires(distribution) or [])
    wanted = (need for need in needs if need.marker is None or need.marker.evaluate({"extra": extra}))
    return {need.name.lower().replace("_", "-"): need for need in wanted}
