"""vLLM 0.33's CUDA kernels that norm, rotate, quantize and write in one, compiled by nvcc, executed as PTX.

Keys are judged as they come out of norm and RoPE: the kernels for MiniMax-M3 and Muse-Spark leave them in their input,
those for DeepSeek V4 get position 0, whose cosines are 1 and sines 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import kvformat as kvf
from kvformat.ptx.memory import Struct
from tests.engines import inputs, sources
from tests.engines.judging import Codes, Pages
from tests.engines.vllm import BLOCK_SIZE, canaries, module, scattered

SOURCE = sources.VLLM
_TYPES = {"bfloat16": "N3c108BFloat16E", "float16": "N3c104HalfE"}
_V4 = "fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu"
_MUSE = "fused_muse_spark_qknorm_rope_kv_insert_kernel.cu"
_M3 = "fused_minimax_m3_qknorm_rope_kv_insert_kernel.cu"
_HEADS = 2
#: what a row of the rotation's table says of position 0
_STILL = np.concatenate([np.ones(32), np.zeros(32)]).astype(np.float32)


def answers() -> Iterator[Codes | Pages]:
    """Everything that is run, one answer at a time."""
    for arch in ("sm_90", "sm_100a"):
        yield latent(arch, "csrc-v4/fp8_ds_mla", "vllm-0.33-deepseek-v4", 64)
        yield latent(arch, "csrc-v41/mxfp8", "vllm-0.33-deepseek-v41", 32)
        yield from full_cache(arch)
    for dtype in _TYPES:
        for scales in ((1.0, 1.0), (0.037, 3e-3), (2.0**-130, 1e30)):
            yield muse("sm_90", dtype, tuple(map(np.float32, scales)))
        for scales in ((1.0, 1.0), (0.0123, 3e-4), (1e20, 1e-20)):
            yield minimax("sm_100a", dtype, tuple(map(np.float32, scales)))
        yield minimax("sm_90", dtype, (np.float32(0.0123), np.float32(1)))


def _turned(x: NDArray[Any]) -> NDArray[Any]:
    """The last 64 dims after RoPE at position 0, in pairs, rounded to x's dtype; a NaN becomes PTX's."""
    wide = x[..., 448:].astype(np.float32)
    even, odd = wide[..., 0::2], wide[..., 1::2]
    with np.errstate(invalid="ignore"):
        zero = np.float32(0)
        made = np.stack([even - odd * zero, even * zero + odd], axis=-1).reshape(wide.shape)
    stored = made.astype(x.dtype).view(np.uint16)
    stored = np.where(np.isnan(made), np.uint16(0x7FFF), stored).view(x.dtype)
    return np.concatenate([x[..., :448], stored], axis=-1)


def latent(arch: str, path: str, layout_name: str, width: int) -> Pages:
    """DeepSeek V4 (448 dims quantized, 64 copied) and V4.1 (512 dims), bfloat16; no query heads."""
    recipe = f"vllm-0.33/{path}"
    x = inputs.shaped(inputs.hard("e4m3fn", "bfloat16", width, (448.0, 1.75, 7.0), 12_000 // (width // 32)), 1, 512)
    layout = kvf.layout(layout_name, mode=path.partition("/")[2], block_size=BLOCK_SIZE)
    slots, blocks = scattered(len(x))
    before = canaries(blocks, layout.page_bytes)
    name = f"47fusedDeepseekV4QNormRopeKVRopeQuantInsertKernelI{_TYPES['bfloat16']}Li0ELb0ELb0E"
    if width == 64:  # the kernel zeroes the byte behind a token's seven scales, which the layout calls padding
        before[:, 576 * BLOCK_SIZE : 584 * BLOCK_SIZE].reshape(blocks, BLOCK_SIZE, 8)[..., 7] = 0
    pages = before.copy()
    module(_V4, arch)[name].launch(
        -(-len(x) // 8), 256,
        [None, None, x, pages.reshape(-1), slots, np.zeros(len(x), np.int64), _STILL, np.float32(1e-6), len(x), len(x),
         0, BLOCK_SIZE, layout.page_bytes, width == 32, True],
    )  # fmt: skip
    return Pages(
        recipe, f"PTX, {arch}", f"fusedDeepseekV4QNormRopeKVRopeQuantInsertKernel<bfloat16>, {layout.mode}", layout,
        _turned(x), None, slots, pages, before,
    )  # fmt: skip


def full_cache(arch: str) -> Iterator[Codes]:
    """All 512 dims with a given scale; those with RoPE are not judged: it mixes them."""
    for dtype, kind in _TYPES.items():
        x = inputs.patterns(dtype, 1, 512)
        name = f"30fusedDeepseekV4FullCacheKernelI{kind}Lb1ELb1ELb0E"
        for scale in inputs.SCALES:
            cache = np.zeros((len(x), 512), ml_dtypes.float8_e4m3fn)
            module(_V4, arch)[name].launch(
                -(-len(x) // 8), 256,
                [None, None, 0, 0, x, cache.view(np.uint8).reshape(-1), np.arange(len(x)), np.zeros(len(x), np.int64),
                 _STILL, np.array([scale]), None, np.float32(1e-6), len(x), len(x), 0, BLOCK_SIZE, BLOCK_SIZE * 512,
                 512],
            )  # fmt: skip
            yield Codes(
                "vllm-0.33/csrc-clamp/fp8_per_tensor", f"PTX, {arch}",
                f"fusedDeepseekV4FullCacheKernel<{dtype}, KV fp8>", x[..., :448],
                np.ascontiguousarray(cache[:, None, :448]), None, scale, "every pattern",
            )  # fmt: skip


def _fast_div(number: int) -> Struct:
    """`FastDiv`, as makeFastDiv fills it."""
    if number == 1:
        return Struct(12, {8: np.int32(1)})
    power = 31 + (number - 1).bit_length()
    multiplier = -(-(1 << power) // number)
    return Struct(12, {0: np.uint32(multiplier), 4: np.uint32(power - 32), 8: np.int32(number)})


def _qkv(element: str, dtype: str, dims: int, width: int) -> NDArray[Any]:
    """One query head, then heads of K and of V; V is written as it is."""
    tops = (448.0,) if element == "e4m3fn" else (6.0, 5.9)
    return inputs.shaped(inputs.hard(element, dtype, width, tops, 240_000 // width), 1 + 2 * _HEADS, dims).copy()


def muse(arch: str, dtype: str, scales: tuple[np.float32, ...]) -> Pages:
    """Muse-Spark: multiplied by the rounded reciprocal of the given scale."""
    value = inputs.patterns(dtype, _HEADS, 64)
    qkv = np.resize(_qkv("e4m3fn", dtype, 64, 64), (len(value), 1 + 2 * _HEADS, 64))
    qkv[:, 1 + _HEADS :] = value
    layout = kvf.layout(
        "vllm-0.33", mode="fp8_per_tensor", block_size=BLOCK_SIZE, num_kv_heads=_HEADS, head_size=64, order="HND"
    )
    slots, blocks = scattered(len(qkv))
    before = canaries(blocks, layout.page_bytes)
    pages = before.copy()
    name = f"MuseSparkQKNormRopeKVInsertKernelI{_TYPES[dtype]}hLNS_18Fp8KVCacheDataTypeE1EfLi64ELi1ELb0ELb1E"
    heads = 1 + 2 * _HEADS
    module(_MUSE, arch)[name].launch(
        -(-len(qkv) * heads * 8 // 256), 256,
        [qkv, None, None, slots, pages.reshape(-1), *(np.array([each]) for each in scales), None, None,
         np.float32(1e-6), 0, len(qkv), 1, _HEADS, _fast_div(heads), heads * 64, _fast_div(BLOCK_SIZE),
         layout.page_bytes, BLOCK_SIZE * 128, 128],
    )  # fmt: skip
    return Pages(
        "vllm-0.33/csrc-reciprocal/fp8_per_tensor", f"PTX, {arch}",
        f"fusedMuseSparkQKNormRopeKVInsertKernel<{dtype}, e4m3>", layout, qkv[:, 1 : 1 + _HEADS].copy(), value, slots,
        pages, before, (scales[0], scales[1]), "K after its norm; V: every pattern",
    )  # fmt: skip


def minimax(arch: str, dtype: str, scales: tuple[np.float32, ...]) -> Pages:
    """MiniMax-M3: NVFP4 with a floor under the block scale; the index heads are there and not processed."""
    qkv = _qkv("e2m1fn", dtype, 128, 16)
    value = qkv[:, 1 + _HEADS :].copy()
    heads = 1 + 2 * _HEADS
    row = np.concatenate([qkv, np.zeros((len(qkv), 2, 128), qkv.dtype)], axis=1)
    layout = kvf.layout(
        "vllm-0.33-minimax-m3", mode="nvfp4", block_size=BLOCK_SIZE, num_kv_heads=_HEADS, head_size=128, order="HND"
    )
    slots, blocks = scattered(len(qkv))
    before = canaries(blocks, layout.page_bytes)
    pages = before.copy()
    kind = _TYPES[dtype]
    name = f"MiniMaxM3QNormRopeKVInsertKernelI{kind}hLNS_18Fp8KVCacheDataTypeE0ELb1ES3_Lb1ELb1ELb0ELb0E"
    weight = np.ones(128, qkv.dtype)
    table = np.concatenate([np.ones(32), np.zeros(32)]).astype(qkv.dtype)
    module(_M3, arch)[name].launch(
        -(-len(qkv) * heads // 8), 256,
        [row, None, None, None, weight, weight, None, None, table, np.zeros(len(qkv), np.int64), slots, None,
         pages.reshape(-1), None, np.float32(1e-6), np.float32(1), 64, len(qkv), 1, _HEADS, 1, BLOCK_SIZE,
         layout.page_bytes, 0, 0, 1, *(np.array([each]) for each in scales)],
        approximate="nearest",
    )  # fmt: skip
    return Pages(
        "vllm-0.33/minimax-m3/nvfp4", f"PTX, {arch}, approximate instructions nearest",
        f"fusedMiniMaxM3QNormRopeKVInsertKernel<{dtype}, nvfp4>", layout, row[:, 1 : 1 + _HEADS].copy(), value, slots,
        pages, before, (scales[0], scales[1]), "K after its norm; V: hard rows",
    )  # fmt: skip
