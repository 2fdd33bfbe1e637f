"""A stand-in for `sgl_kernel` on a machine without a GPU.

PyPI's sglang-kernel is CUDA only and cannot even be imported without a driver. SGLang on CPU imports its symbols but
falls back to native operations, so a module whose symbols raise only when *called* is enough, but for a few that it
really calls: a kernel that is needed and missing fails loudly, by name.
"""

import importlib.machinery
import os
import sys
import types
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from tasks.engine import cpu_linear_attention

_ROOT = "sgl_kernel"
_IMPLEMENTED = {
    "causal_conv1d_fn_cpu": cpu_linear_attention.convolve,
    "chunk_gated_delta_rule_cpu": cpu_linear_attention.apply_delta_rule,
}


class _Missing:
    """A kernel that does not exist here."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_: object, **__: object) -> NoReturn:
        raise RuntimeError(f"{self._name} is a CUDA kernel; this machine runs SGLang without a GPU")

    def __getattr__(self, name: str) -> "_Missing":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Missing(f"{self._name}.{name}")


class _Module(types.ModuleType):
    """A module every attribute of which is missing, but for those implemented here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _IMPLEMENTED.get(name) or _Missing(f"{self.__name__}.{name}")


class _Finder:
    """Import hook that answers for `sgl_kernel` and all below it."""

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: Any = None) -> Any:
        if name == _ROOT or name.startswith(_ROOT + "."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        vars(module)["__version__"] = "0"
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module empty."""


def install() -> None:
    """Switch SGLang to its CPU engine and put the stand-in before `sgl_kernel`; call it before SGLang is imported."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    # Compiling would need a C++ compiler on the machine; the first DeepSeek forward takes 3 s without it, 37 s with it.
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    # SGLang looks these up as operators of torch. No others: it takes some for a sign of AMX.
    operators = vars(torch.ops.sgl_kernel)
    operators["fused_gdn_gating_cpu"] = cpu_linear_attention.make_gates
    operators["fused_sigmoid_gating_delta_rule_update_cpu"] = _Missing("sgl_kernel.fused_sigmoid_gating_delta_rule")
