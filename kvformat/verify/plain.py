"""An independent cache writer in plain NumPy: the golden arithmetic and the byte addresses, written out by hand.

It shares nothing with the engine, the codecs or the layouts: casts are ml_dtypes', addresses are formulas, one token
at a time. Slow and simple on purpose; the built-in check judges its pages.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Coded = tuple[Bytes, Bytes]

#: largest e2m1 magnitudes that still round down to each value, ties going to the even code
_E2M1_MIDPOINTS = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)


def write_pages(
    layout: str,
    mode: str,
    order: str,
    key: NDArray[Any],
    value: NDArray[Any],
    slots: NDArray[np.int64],
    *,
    block_size: int,
    num_blocks: int,
    v_scales: str | None = None,
) -> Bytes:
    """Pages uint8 (num_blocks, page_bytes) of `vllm-0.33` or `flashinfer`, dtype bfloat16 in mode none.

    key, value: bfloat16 (tokens, heads, head_dim) without NaN or Inf, equal head sizes.
    """
    tokens, heads, _ = key.shape
    sides = [_quantize(mode, side.astype(np.float32)) for side in (key, value)]
    data, scale = sides[0][0].shape[2], sides[0][1].shape[2]
    pages = np.zeros((num_blocks, 2 * block_size * heads * (data + scale)), np.uint8)
    for token in range(tokens):
        block, slot = divmod(int(slots[token]), block_size)
        if slots[token] < 0:
            continue
        for head in range(heads):
            row = slot * heads + head if order == "NHD" else head * block_size + slot
            for side, (codes, scales) in enumerate(sides):
                at = _code_byte(layout, mode, side, row, block_size * heads, data, scale)
                pages[block, at : at + data] = codes[token, head]
                for column in range(scale):
                    place = (slot, head, column)
                    if side == 1 and v_scales == "swizzled":
                        place = _swizzled(slot, head, column, scale)
                    at = _scale_byte(layout, mode, side, place, order, (block_size, heads), data, scale)
                    pages[block, at] = scales[token, head, column]
    return pages


def _code_byte(layout: str, mode: str, side: int, row: int, rows: int, data: int, scale: int) -> int:
    if layout == "vllm-0.33" and mode != "nvfp4":  # cells: K, its scale, V, its scale
        return row * 2 * (data + scale) + side * (data + scale)
    if layout == "vllm-0.33":  # K data, K scale, V data, V scale
        return side * rows * (data + scale) + row * data
    return side * rows * data + row * data  # flashinfer: K data, V data, then the scales


def _scale_byte(
    layout: str,
    mode: str,
    side: int,
    place: tuple[int, int, int],
    order: str,
    size: tuple[int, int],
    data: int,
    scale: int,
) -> int:
    slot, head, column = place
    block_size, heads = size
    rows = block_size * heads
    row = slot * heads + head if order == "NHD" else head * block_size + slot
    if layout == "vllm-0.33" and mode != "nvfp4":
        return _code_byte(layout, mode, side, row, rows, data, scale) + data + column
    if layout == "vllm-0.33":
        return side * rows * (data + scale) + rows * data + row * scale + column
    return 2 * rows * data + side * rows * scale + row * scale + column


def _swizzled(slot: int, head: int, column: int, columns: int) -> tuple[int, int, int]:
    # vLLM 0.33 csrc/nvfp4_kv_cache_kernels.cu L34-48: groups of 4 tokens, the scales of one token spread over them
    group = columns // 4
    return slot // 4 * 4 + column // group, head, column % group * 4 + slot % 4


def _quantize(mode: str, x: NDArray[np.float32]) -> Coded:
    """Code bytes and scale bytes of each (token, head): uint8 (tokens, heads, bytes)."""
    if mode == "none":
        return _bytes(x.astype(ml_dtypes.bfloat16)), _bytes(x[..., :0])
    if mode == "fp8_per_tensor":
        return _bytes(_e4m3fn(x / _nonzero(np.abs(x).max() / np.float32(448)))), _bytes(x[..., :0])
    if mode == "nvfp4":
        return _nvfp4(x)
    amax = np.abs(x).max(axis=2, keepdims=True)
    if mode == "fp8_per_token_head":
        scale = _nonzero(amax / np.float32(448))
        return _bytes(_e4m3fn(x / scale)), _bytes(scale)
    scale = _nonzero(amax / np.float32(127))
    return _bytes(np.clip(np.rint(x / scale), -127, 127).astype(np.int8)), _bytes(scale)


def _nvfp4(x: NDArray[np.float32]) -> Coded:
    tokens, heads, dims = x.shape
    shared = _nonzero(np.abs(x).max() / np.float32(2688))
    blocks = x.reshape(tokens, heads, dims // 16, 16)
    amax = np.abs(blocks).max(axis=3, keepdims=True)
    stored = _e4m3fn(amax / (np.float32(6) * shared))
    divisor = stored.astype(np.float32) * shared
    quotient = np.zeros_like(blocks)
    np.divide(blocks, divisor, out=quotient, where=divisor != 0)
    # side="right" sends a tie up; the four ties whose even neighbour is below step back one
    size = np.abs(quotient)
    magnitude = np.searchsorted(_E2M1_MIDPOINTS, size, side="right")
    magnitude -= np.isin(size, _E2M1_MIDPOINTS[[0, 2, 4, 6]])
    codes = (magnitude + 8 * np.signbit(blocks)).astype(np.uint8).reshape(tokens, heads, dims)
    return codes[..., 0::2] | codes[..., 1::2] << 4, _bytes(stored[..., 0])


def _e4m3fn(x: NDArray[np.float32]) -> NDArray[Any]:
    return np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn)


def _nonzero(scale: Any) -> Any:
    return np.where(scale == 0, np.float32(1), scale).astype(np.float32)


def _bytes(array: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape[:2], -1)
