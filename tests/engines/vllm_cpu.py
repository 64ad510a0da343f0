"""vLLM 0.33's FP8 cache writer of its CPU backend without AMX: the release's header, compiled by g++ and called."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvformat as kvf
from tests.engines import inputs, nvcc, sources
from tests.engines.judging import Pages
from tests.engines.sources import Source
from tests.engines.vllm import canaries

SOURCE = sources.VLLM
_HEADS, _DIMS, _BLOCK_SIZE = 2, 64, 128
_TYPES = {"float32": "float", "bfloat16": "c10::BFloat16", "float16": "c10::Half"}
#: of K and of V: one, ordinary ones, a bfloat16 one, those whose reciprocal overflows or is subnormal
_SCALES = ((1.0, 0.037), (0.05078125, 448.0), (3e-5, 1e30), (2.0**-130, 3e38))

#: stands for the header that the writer's own includes, which asks for AVX-512
_UTILS = "\n".join(f"#include <c10/util/{name}.h>" for name in ("BFloat16", "Half", "Float8_e4m3fn", "Float8_e5m2"))
_WRITER = """
#include "cpu/cpu_attn_fp8.hpp"
extern "C" void write(const SCALAR* k, const SCALAR* v, uint8_t* kc, uint8_t* vc, const int64_t* slots, int64_t tokens,
                      int64_t heads, int64_t dims, int64_t block, float k_inv, float v_inv) {
  constexpr auto quantize = select_fp8_quant_fn<c10::Float8_e4m3fn>();
  const int64_t head = 2 * block * dims, page = heads * head;
  reshape_and_cache_fp8_vec_impl<SCALAR, quantize>(k, v, kc, vc, slots, tokens, heads, dims, block, heads * dims, dims,
                                                   heads * dims, dims, page, head, page, head, k_inv, v_inv);
}
"""


def answers() -> Iterator[Pages]:
    """Every pattern of three dtypes, four pairs of scales."""
    yield from written(SOURCE, "0.33")


def written(source: Source, version: str) -> Iterator[Pages]:
    """`reshape_and_cache_fp8_vec_impl` of a release on its pages: a K plane by columns, a V plane by rows."""
    csrc = next(sources.fetch(source).glob("vllm-*")) / "csrc"
    layout = kvf.layout(
        f"vllm-{version}-cpu", mode="fp8_per_tensor", block_size=_BLOCK_SIZE, num_kv_heads=_HEADS, head_size=_DIMS
    )
    for dtype, scalar in _TYPES.items():
        what = "around every code" if dtype == "float32" else "every pattern"
        write = _compiled(csrc, scalar)
        key = inputs.patterns(dtype, _HEADS, _DIMS)
        value = np.ascontiguousarray(key[::-1, :, ::-1])
        blocks = -(-len(key) // _BLOCK_SIZE) + 1
        slots = np.random.default_rng(7).permutation(blocks * _BLOCK_SIZE)[: len(key)].astype(np.int64)
        slots[::9] = -1
        for pair in _SCALES:
            scales = np.float32(pair[0]), np.float32(pair[1])
            before = canaries(blocks, layout.page_bytes)
            pages = before.copy()
            write(key, value, pages, slots, scales)
            yield Pages(
                f"vllm-{version}/cpu/fp8_per_tensor", "CPU, C++", "reshape_and_cache_fp8_vec_impl", layout,
                key, value, slots, pages, before, scales, what,
            )  # fmt: skip


def _compiled(csrc: Path, scalar: str) -> Callable[..., None]:
    """The writer for one dtype: K, V, pages, slots and the scales, whose reciprocals the backend takes."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "cpu").mkdir()
        (folder / "cpu" / "utils.hpp").write_text(_UTILS)
        (folder / "cpu" / "cpu_attn_fp8.hpp").symlink_to(csrc / "cpu" / "cpu_attn_fp8.hpp")
        (folder / "writer.cpp").write_text(_WRITER)
        include = [f"-I{path}" for path in (folder, *nvcc.torch_headers())]
        flags = ["-std=c++20", "-O2", "-shared", "-fPIC", "-w", f"-DSCALAR={scalar}"]
        library = folder / "writer.so"
        subprocess.run(["g++", *flags, *include, str(folder / "writer.cpp"), "-o", str(library)], check=True)
        function = ctypes.CDLL(str(library)).write
    function.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_int64] * 4 + [ctypes.c_float] * 2
    function.restype = None

    def write(
        key: NDArray[Any], value: NDArray[Any], pages: NDArray[np.uint8], slots: NDArray[np.int64],
        scales: tuple[np.float32, np.float32],
    ) -> None:  # fmt: skip
        with np.errstate(over="ignore"):
            inverse = [float(np.float32(1) / scale) for scale in scales]
        k_plane = pages.ctypes.data
        function(
            key.ctypes.data, value.ctypes.data, k_plane, k_plane + _BLOCK_SIZE * _DIMS, slots.ctypes.data,
            len(slots), _HEADS, _DIMS, _BLOCK_SIZE, *inverse,
        )  # fmt: skip

    return write
