"""vLLM 0.33's NVFP4 cache writer, compiled by nvcc for sm_100a, executed as PTX."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import kvformat as kvf
from tests.engines import inputs, sources
from tests.engines.judging import Pages
from tests.engines.vllm import BLOCK_SIZE, canaries, module, scattered

SOURCE = sources.VLLM
_HEADS, _DIMS = 4, 128
_TYPES = {"bfloat16": "8BFloat16", "float16": "4Half"}
#: the kernel's search for the scale, as its template counts them
_SEARCH = {"nvfp4": 0}
_SCALES = tuple((np.float32(k), np.float32(v)) for k, v in ((1.0, 0.0123), (3e-4, 2.0**-20), (1e20, 1e-20)))


def answers() -> Iterator[Pages]:
    """Both dtypes, both orders, scales of several sizes."""
    for dtype in ("bfloat16", "float16"):
        groups = inputs.hard("e2m1fn", dtype, 16, (6.0,), 24_000)
        key = inputs.shaped(groups, _HEADS, _DIMS)
        value = inputs.shaped(inputs.hard("e2m1fn", dtype, 16, (6.0, 5.9), 24_000, seed=3), _HEADS, _DIMS)
        for name in _SEARCH:
            for order, scales in zip(("NHD", "HND", "NHD"), _SCALES, strict=True):
                yield write(name, order, key, value, scales)


def write(name: str, order: str, key: np.ndarray, value: np.ndarray, scales: tuple[np.float32, np.float32],
          arch: str = "sm_100a", approximate: str = "nearest") -> Pages:  # fmt: skip
    """`reshape_and_cache_nvfp4_dispatch`."""
    layout = kvf.layout(
        "vllm-0.33", mode="nvfp4", block_size=BLOCK_SIZE, num_kv_heads=_HEADS, head_size=_DIMS, order=order
    )
    slots, blocks = scattered(len(key))
    before = canaries(blocks, layout.page_bytes)
    pages = before.copy()
    data, scale = _DIMS // 2, _DIMS // 16
    side = _HEADS * BLOCK_SIZE * (data + scale)
    codes = _HEADS * BLOCK_SIZE * data
    flat = pages.reshape(-1)

    def strides(width: int) -> list[int]:
        return [layout.page_bytes, *((width, _HEADS * width) if order == "NHD" else (BLOCK_SIZE * width, width))]

    kernel = module("nvfp4_kv_cache_kernels.cu", arch)[
        f"reshape_and_cache_nvfp4_kernelIN3c10{_TYPES[key.dtype.name]}ELNS_18NVFP4KVScaleSearchE{_SEARCH[name]}E"
    ]
    kernel.launch(
        len(slots), -(-_HEADS * scale // 32) * 32,
        [key, value, flat, flat[side:], flat[codes:], flat[side + codes :], slots, *(np.array([s]) for s in scales),
         _HEADS * _DIMS, _HEADS * _DIMS, _HEADS, _DIMS, BLOCK_SIZE, *strides(data), *strides(scale)],
        approximate=approximate,
    )  # fmt: skip
    return Pages(
        f"vllm-0.33/csrc/{name}", f"PTX, {arch}, approximate instructions {approximate}",
        f"reshape_and_cache_nvfp4_kernel<{key.dtype.name}, {name}>", layout, key, value, slots, pages, before, scales,
    )  # fmt: skip
