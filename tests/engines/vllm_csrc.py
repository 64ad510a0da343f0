"""vLLM 0.33's CUDA cache writers, compiled by nvcc for several targets and executed by `kvformat.ptx`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvformat as kvf
from kvformat import ptx
from tests.engines import inputs, sources
from tests.engines.judging import Codes, Pages
from tests.engines.vllm import BLOCK_SIZE, canaries, module, scattered

SOURCE = sources.VLLM
#: the type of an element as kernels' names mangle it
_MANGLED = {"float32": "f", "float16": "t", "bfloat16": "13__nv_bfloat16"}
_FP8 = {"e4m3": "1", "e5m2": "2"}
_HEADS = 4


def answers() -> Iterator[Codes | Pages]:
    """Everything that is run, one answer at a time."""
    for arch in ("sm_80", "sm_90", "sm_100a"):
        yield from fp8_flash(arch)
        yield from fp8_heads(arch)


# --- reshape_and_cache_flash: fp8 with given scales ----------------------------------------------------------------


def _kernel(arch: str, name: str, dtype: str, fmt: str) -> ptx.Kernel:
    source = _MANGLED[dtype]
    return module("cache_kernels.cu", arch)[f"{name}I{source}hLNS_18Fp8KVCacheDataTypeE{_FP8[fmt]}E"]


def flash(
    arch: str, fmt: str, key: NDArray[Any], value: NDArray[Any], slots: NDArray[np.int64], layout: kvf.Layout,
    pages: NDArray[np.uint8], k_scale: NDArray[np.float32], v_scale: NDArray[np.float32],
) -> None:  # fmt: skip
    """`reshape_and_cache_flash` on the views that the engine gives it: K in the first half of each cell, V behind."""
    heads, dims = key.shape[1:]
    cell, block_size = 2 * dims, layout.block_size
    head_stride, slot_stride = (cell, heads * cell) if layout.order == "NHD" else (block_size * cell, cell)
    flat = pages.reshape(-1)
    _kernel(arch, "reshape_and_cache_flash_kernel", key.dtype.name, fmt).launch(
        len(slots), min(heads * dims, 512),
        [key, value, flat, flat[dims:], slots, layout.page_bytes, slot_stride, head_stride, heads * dims, heads * dims,
         heads, dims, block_size, k_scale, v_scale, int(k_scale.size > 1)],
    )  # fmt: skip


def fp8_flash(arch: str) -> Iterator[Pages]:
    """Per tensor: every bfloat16 and float16 pattern, the neighbourhood of every code in float32; both orders."""
    for dtype in ("bfloat16", "float16", "float32"):
        key = inputs.patterns(dtype, _HEADS, 64)
        value = key[::-1].copy()
        slots, blocks = scattered(len(key))
        for fmt, path in (("e4m3", "csrc"), ("e5m2", "csrc-e5m2")):
            recipe = f"vllm-0.33/{path}/fp8_per_tensor"
            for order, k_scale, v_scale in zip(
                ("NHD", "HND", "NHD"), inputs.SCALES[:3], inputs.SCALES[3:], strict=True
            ):
                layout = kvf.layout(
                    "vllm-0.33", mode="fp8_per_tensor", block_size=BLOCK_SIZE, num_kv_heads=_HEADS, head_size=64,
                    order=order,
                )  # fmt: skip
                before = canaries(blocks, layout.page_bytes)
                pages = before.copy()
                flash(arch, fmt, key, value, slots, layout, pages, np.array([k_scale]), np.array([v_scale]))
                inputs_said = "every pattern" if dtype != "float32" else "around every code"
                yield Pages(
                    recipe, f"PTX, {arch}", f"reshape_and_cache_flash_kernel<{dtype}, {fmt}>", layout, key, value,
                    slots, pages, before, (k_scale, v_scale), inputs_said,
                )  # fmt: skip


def fp8_heads(arch: str) -> Iterator[Codes]:
    """A scale per head: each head is the recipe with its scale."""
    key = inputs.patterns("bfloat16", _HEADS, 64)
    slots = np.arange(len(key), dtype=np.int64)
    layout = kvf.layout("vllm-0.33", mode="fp8_per_tensor", block_size=BLOCK_SIZE, num_kv_heads=_HEADS, head_size=64)
    pages = canaries(-(-len(key) // BLOCK_SIZE), layout.page_bytes)
    scales = np.array([1.0, 0.037, 3.5, 2.0**-130], np.float32)
    flash(arch, "e4m3", key, key, slots, layout, pages, scales, scales)
    cells = pages.reshape(-1, _HEADS, 2, 64)[: len(key)]
    for head, scale in enumerate(scales):
        yield Codes(
            "vllm-0.33/csrc/fp8_per_tensor", f"PTX, {arch}", "reshape_and_cache_flash_kernel<bfloat16, e4m3>, per head",
            key[:, [head]], np.ascontiguousarray(cells[:, [head], 0]), None, scale, "every pattern",
        )  # fmt: skip
