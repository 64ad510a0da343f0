"""The list of all kernels of the zoo."""

from __future__ import annotations

from importlib.util import find_spec

from kvformat.fuzz.zoo import quantizers, readers, right, writers
from kvformat.fuzz.zoo.entry import Kernel, of_class


def kernels() -> tuple[Kernel, ...]:
    """Every kernel in every mode it is for, broken ones first; those in torch and Triton where these are installed."""
    broken = [quantizers.BROKEN, writers.BROKEN, readers.BROKEN]
    found = [kernel for classes in broken for each in classes for kernel in of_class(each)]
    found += right.kernels()
    if find_spec("torch") is not None:
        from kvformat.fuzz.zoo import torch_kernels

        found += torch_kernels.kernels()
        if find_spec("triton") is not None:
            from kvformat.fuzz.zoo import triton_kernels

            found += triton_kernels.kernels()
    return tuple(found)
