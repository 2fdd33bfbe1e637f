"""The stand-in for `sgl_kernel`: it can be imported, and a kernel that is really needed fails by name."""

import subprocess
import sys


def run(code: str) -> str:
    """Run code in a process of its own, since the stand-in stays once it is there."""
    code = f"from tasks.engine import cpu_kernels\ncpu_kernels.install()\n{code}"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def test_any_symbol_of_any_module_can_be_imported() -> None:
    run("import sgl_kernel, sgl_kernel.elementwise.deep; from sgl_kernel.flash_attn import flash_attn_varlen_func")


def test_a_kernel_that_is_called_fails_by_name() -> None:
    code = """
from sgl_kernel.gemm import awq_dequantize
import sgl_kernel
for call in (awq_dequantize, sgl_kernel.rmsnorm, sgl_kernel.ops.sub.silu):
    try:
        call(1, x=2)
    except RuntimeError as error:
        print(error)
"""
    assert run(code).splitlines() == [
        f"sgl_kernel.{name} is a CUDA kernel; this machine runs SGLang without a GPU"
        for name in ("gemm.awq_dequantize", "rmsnorm", "ops.sub.silu")
    ]


def test_questions_about_python_itself_are_answered_truly() -> None:
    """`hasattr(module, "__file__")` and its like decide what inspect, pickle and torch do with it."""
    assert run("import sgl_kernel; print(hasattr(sgl_kernel, '__wrapped__'), hasattr(sgl_kernel.x, '__iter__'))") == (
        "False False"
    )


def test_other_modules_are_not_touched() -> None:
    code = """
import importlib.util
print(importlib.util.find_spec("sgl_kernels"), importlib.util.find_spec("json").origin.endswith("json/__init__.py"))
"""
    assert run(code) == "None True"


def test_installing_twice_is_once() -> None:
    code = """
import sys
import sgl_kernel
before = len(sys.meta_path)
cpu_kernels.install()
import importlib
print(len(sys.meta_path) == before, importlib.import_module("sgl_kernel") is sgl_kernel)
"""
    assert run(code) == "True True"


def test_sglang_is_told_that_there_is_no_gpu() -> None:
    assert run("import os; print(os.environ['SGLANG_USE_CPU_ENGINE'])") == "1"
