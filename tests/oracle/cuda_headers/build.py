"""NVIDIA's cuda_fp8.h and cuda_fp4.h on the CPU: builds oracle.cpp with g++ and calls it on NumPy arrays."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("oracle.cpp")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


class UnavailableError(RuntimeError):
    """The oracle cannot be built here; the message says what is missing."""


def include_dir() -> Path:
    """The headers of the three nvidia-cuda-{runtime,crt,cccl} wheels. Raises UnavailableError without them."""
    spec = find_spec("nvidia")
    for root in (spec and spec.submodule_search_locations) or ():
        for include in sorted(Path(root).glob("cu*/include"), reverse=True):
            if all((include / name).exists() for name in ("cuda_fp4.h", "crt/host_defines.h", "nv/target")):
                return include
    raise UnavailableError("no CUDA headers: pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl")


class CudaHeaders:
    """The compiled oracle. Codes come back as uint8, one per byte; NaN codes are NVIDIA's, not kvformat's."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))

    @property
    def version(self) -> str:
        """The toolkit version that the headers belong to."""
        number = int(self._library.toolkit_version())
        return f"{number // 1000}.{number % 1000 // 10}"

    def encode(self, x: NDArray, name: str, *, overflow: str = "saturate", rounding: str | None = None) -> NDArray:
        """The codes of `x` (float32, float64, float16 or bfloat16), as the headers convert them."""
        stem = f"{name}_{rounding}" if rounding else name
        return self._call(f"{stem}_{overflow}_{x.dtype.name}", x, np.empty(x.shape, np.uint8))

    def decode(self, codes: NDArray, name: str) -> NDArray:
        """The values of uint8 `codes`, widened from the float16 or bfloat16 that the headers give."""
        narrow = BFLOAT16 if name == "e8m0fnu" else np.dtype(np.float16)
        bits = self._call(f"{name}_decode", codes, np.empty(codes.shape, np.uint16))
        return bits.view(narrow).astype(np.float32)

    def pack(self, x: NDArray) -> NDArray:
        """Pairs of float32 as bytes of two e2m1fn codes, by the headers' x2 conversion."""
        return self._call("e2m1fn_pack_float32", x, np.empty(x.size // 2, np.uint8))

    def _call(self, symbol: str, x: NDArray, out: NDArray) -> NDArray:
        x = np.ascontiguousarray(x)
        function = getattr(self._library, symbol)
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        function.restype = None
        function(x.ctypes.data, out.ctypes.data, out.size)
        return out


def build(folder: Path) -> CudaHeaders:
    """Compiles the oracle into `folder` (about a second) and loads it. Raises UnavailableError where that fails."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise UnavailableError("no C++ compiler: install g++, or name one in CXX")
    library = folder / "oracle.so"
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-isystem", str(include_dir())]
    done = subprocess.run([*command, str(SOURCE), "-o", str(library)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnavailableError(f"{compiler} failed on {SOURCE.name}: {done.stderr.strip()[:2000]}")
    return CudaHeaders(library)
