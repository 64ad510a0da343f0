"""vLLM 0.33's CUDA writers of DeepSeek's latent attention and of its indexer, compiled by nvcc, executed as PTX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvformat as kvf
from tests.engines import inputs, sources
from tests.engines.judging import Pages
from tests.engines.vllm import BLOCK_SIZE, canaries, module, scattered

SOURCE = sources.VLLM
_MANGLED = {"float32": "f", "float16": "t", "bfloat16": "13__nv_bfloat16"}
_ARCHES = ("sm_80", "sm_90", "sm_100a")


def answers() -> Iterator[Pages]:
    """Everything that is run, one answer at a time."""
    for arch in _ARCHES:
        yield from mla_fp8(arch)
        yield ds_mla(arch)
        yield from indexer(arch)
    yield nvfp4_ds_mla("sm_100a")


def _layout(name: str, mode: str) -> kvf.Layout:
    return kvf.layout(name, mode=mode, block_size=BLOCK_SIZE)


def _started(layout: kvf.Layout, tokens: int) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.uint8]]:
    slots, blocks = scattered(tokens)
    before = canaries(blocks, layout.page_bytes)
    return slots, before, before.copy()


def _concat(arch: str, name: str, dtype: str, x: NDArray[Any], pages: NDArray[np.uint8], slots: NDArray[np.int64],
            row: int, threads: int, scale: np.float32) -> None:  # fmt: skip
    """`concat_and_cache_mla`: the latent and the RoPE part come as two tensors."""
    latent, rope = (np.ascontiguousarray(x[:, 0, dims]) for dims in (slice(0, 512), slice(512, 576)))
    kernel = module("cache_kernels.cu", arch)[f"{name}I{_MANGLED[dtype]}hLNS_18Fp8KVCacheDataTypeE1E"
                                              + ("Lb0E" if name.startswith("27") else "")]  # fmt: skip
    kernel.launch(
        len(slots), threads,
        [latent, rope, pages.reshape(-1), slots, pages.shape[1], row, 512, 64, 512, 64, BLOCK_SIZE,
         np.array([scale], np.float32)],
    )  # fmt: skip


def mla_fp8(arch: str) -> Iterator[Pages]:
    """Latent and RoPE share one given scale."""
    for dtype, scale in (("bfloat16", np.float32(0.037)), ("float16", np.float32(1)), ("float32", np.float32(3e-3))):
        x = inputs.patterns(dtype, 1, 576)
        layout = _layout("vllm-0.33-mla", "fp8_per_tensor")
        slots, before, pages = _started(layout, len(x))
        _concat(arch, "27concat_and_cache_mla_kernel", dtype, x, pages, slots, 576, 512, scale)
        yield Pages(
            "vllm-0.33/csrc/fp8_per_tensor", f"PTX, {arch}", f"concat_and_cache_mla_kernel<{dtype}, e4m3>", layout, x,
            None, slots, pages, before, (scale, scale), "every pattern" if dtype != "float32" else "around every code",
        )  # fmt: skip


def _latent(dtype: str, width: int, tops: tuple[float, ...], element: str, tokens: int, dims: int) -> NDArray[Any]:
    """Hard groups side by side; behind the 512 latent dims come RoPE dims of every pattern."""
    groups = inputs.hard(element, dtype, width, tops, tokens * 512 // width)
    latent = inputs.shaped(groups, 1, 512)
    rope = np.resize(inputs.patterns(dtype, 1, 64), (len(latent), 1, 64))
    return np.concatenate([latent, rope], axis=2) if dims == 576 else latent


def ds_mla(arch: str) -> Pages:
    """The 656-byte record, bfloat16."""
    x = _latent("bfloat16", 128, (448.0, 1.75, 7.0), "e4m3fn", 1500, 576)
    layout = _layout("vllm-0.33-mla", "fp8_ds_mla")
    slots, before, pages = _started(layout, len(x))
    _concat(arch, "30concat_and_cache_ds_mla_kernel", "bfloat16", x, pages, slots, 656, 96, np.float32(1))
    return Pages(
        "vllm-0.33/csrc/fp8_ds_mla", f"PTX, {arch}", "concat_and_cache_ds_mla_kernel<bfloat16, e4m3>", layout, x, None,
        slots, pages, before,
    )  # fmt: skip


def indexer(arch: str) -> Iterator[Pages]:
    """Indexer keys with float32 scales, powers of two, and exponent bytes; bfloat16."""
    groups = inputs.hard("e4m3fn", "bfloat16", 128, (448.0, 1.75, 7.0), 6000)
    patterns = inputs.patterns("bfloat16", 1, 128)
    x = np.concatenate([groups.reshape(-1, 1, 128), patterns, _amaxes()])
    for mode in ("indexer_k", "indexer_k_ue8m0"):
        layout = _layout("vllm-0.33-indexer", mode)
        slots, before, pages = _started(layout, len(x))
        kernel = module("cache_kernels.cu", arch)[
            "indexer_k_quant_and_cache_kernelI13__nv_bfloat16hLNS_18Fp8KVCacheDataTypeE1E"
        ]
        kernel.launch(
            (len(slots), 1), (32, 4),
            [x, pages.reshape(-1), slots, 128, 128, BLOCK_SIZE, layout.page_bytes, mode != "indexer_k",
             mode == "indexer_k_mxfp8"],
        )  # fmt: skip
        yield Pages(
            f"vllm-0.33/csrc/{mode}", f"PTX, {arch}", f"indexer_k_quant_and_cache_kernel<bfloat16>, {mode}", layout, x,
            None, slots, pages, before, None, "hard rows; every bfloat16 amax",
        )  # fmt: skip


def _amaxes() -> NDArray[Any]:
    """Every finite positive bfloat16 as the largest element of a row of its own."""
    values = np.arange(0x7F80, dtype=np.uint16).view(inputs.DTYPES["bfloat16"])
    rows = np.zeros((len(values), 1, 128), values.dtype)
    rows[:, 0, 7] = values
    rows[:, 0, 90] = -(values.astype(np.float32) / 3).astype(values.dtype)
    return rows


def nvfp4_ds_mla(arch: str) -> Pages:
    """The 352-byte record: RoPE is e4m3 without a scale."""
    x = _latent("bfloat16", 16, (6.0,), "e2m1fn", 1500, 576)
    layout = _layout("vllm-0.33-mla", "nvfp4_ds_mla")
    slots, before, pages = _started(layout, len(x))
    latent, rope = (np.ascontiguousarray(x[:, 0, dims]) for dims in (slice(0, 512), slice(512, 576)))
    module("nvfp4_ds_mla_cache_kernels.cu", arch)["36concat_and_cache_nvfp4_ds_mla_kernel"].launch(
        len(slots), 64, [latent, rope, pages.reshape(-1), slots, pages.shape[1], 352, 512, 64, BLOCK_SIZE]
    )
    return Pages(
        "vllm-0.33/csrc/nvfp4_ds_mla", f"PTX, {arch}", "concat_and_cache_nvfp4_ds_mla_kernel", layout, x, None, slots,
        pages, before,
    )  # fmt: skip
