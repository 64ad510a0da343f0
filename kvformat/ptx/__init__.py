"""Kernels as compiled, executed bit for bit on a CPU: PTX text, parsed, and run as its ISA defines it.

from kvformat import ptx
module = ptx.load("kernel.ptx")
kernel = module["reshape_and_cache"]
run = kernel.launch(grid=(4, 1, 1), block=(128, 1, 1), args=[key, cache, 128])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvformat.ptx.compile import compile_cuda as compile_cuda
    from kvformat.ptx.errors import KernelFault as KernelFault
    from kvformat.ptx.errors import Refused as Refused
    from kvformat.ptx.memory import Struct as Struct
    from kvformat.ptx.module import Kernel as Kernel
    from kvformat.ptx.module import Module as Module
    from kvformat.ptx.module import Run as Run
    from kvformat.ptx.module import load as load
    from kvformat.ptx.single import evaluate as evaluate

_HOMES = {
    "KernelFault": "errors",
    "Refused": "errors",
    "evaluate": "single",
    "Struct": "memory",
    "Kernel": "module",
    "Module": "module",
    "Run": "module",
    "compile_cuda": "compile",
    "load": "module",
}

__all__ = ["Kernel", "KernelFault", "Module", "Refused", "Run", "Struct", "compile_cuda", "evaluate", "load"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvformat.ptx' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"kvformat.ptx.{_HOMES[name]}"), name)
