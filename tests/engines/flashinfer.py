"""FlashInfer 0.7.4's CUDA cache writers, compiled by nvcc as its JIT compiles them, executed as PTX.

Its JIT passes -use_fast_math; `append-precise` is the same file without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import ml_dtypes
import numpy as np

import kvformat as kvf
from kvformat import ptx
from kvformat.ptx.memory import Struct
from tests.engines import inputs, nvcc, sources
from tests.engines.judging import Codes, Pages
from tests.engines.vllm import BLOCK_SIZE, canaries, scattered

SOURCE = sources.FLASHINFER
_HEADS, _DIMS = 2, 128
_TYPES = {"bfloat16": "13__nv_bfloat16", "float16": "6__half"}
_FAST = ("-use_fast_math",)
#: decode scales; with fast math a scale is to be a normal number, and six of it at most 2^126
_SCALES = tuple((np.float32(k), np.float32(v)) for k, v in ((1.0, 0.0123), (3e-4, 2.0**-20), (1e20, 1e-20)))


def answers() -> Iterator[Codes | Pages]:
    """Everything that is run, one answer at a time."""
    for dtype in _TYPES:
        for order, scales in zip(("NHD", "HND", "NHD"), _SCALES, strict=True):
            yield append("append", "sm_100a", _FAST, dtype, order, scales)
            yield append("append-precise", "sm_100a", (), dtype, order, scales)
        yield append("append", "sm_90", _FAST, dtype, "NHD", _SCALES[0])
        for scales in (*_SCALES, (np.float32(2.0**-126), np.float32(448))):
            yield append_mla("sm_100a", dtype, scales)
        yield from kv_quantize(dtype)
        yield from rope_quantize("sm_90", dtype)


@cache
def _module(file: str, arch: str, options: tuple[str, ...] = _FAST) -> ptx.Module:
    data = sources.fetch(SOURCE) / "flashinfer" / "data"
    ffi = sources.fetch(sources.TVM_FFI) / "tvm_ffi"
    include = [data / "include", data / "csrc", ffi / "include", ffi / "3rdparty" / "dlpack" / "include"]
    define: dict[str, str | int | None] = dict.fromkeys(
        f"FLASHINFER_ENABLE_{name}" for name in ("F16", "BF16", "FP8_E4M3", "FP8_E5M2")
    )
    options = ("-std=c++17", "-O3", *options)
    return nvcc.compiled(data / "csrc" / file, arch, include=include, define=define, options=options)


def _said(arch: str, options: tuple[str, ...]) -> str:
    return f"PTX, {arch}, {'fast math, approximate instructions nearest' if options else 'without fast math'}"


# --- nvfp4_quantize_append_paged_kv_cache, by slots ----------------------------------------------------------------


def append(
    path: str, arch: str, options: tuple[str, ...], dtype: str, order: str, scales: tuple[np.float32, np.float32]
) -> Pages:
    """Pages of codes of K and V, then of scales of K and V; the kernel is given the strides of each."""
    groups = [inputs.hard("e2m1fn", dtype, 16, tops, 12_000, seed=seed) for seed, tops in ((0, (6.0,)), (3, (5.9,)))]
    key, value = (inputs.shaped(each, _HEADS, _DIMS) for each in groups)
    layout = kvf.layout(
        "flashinfer", mode="nvfp4", block_size=BLOCK_SIZE, num_kv_heads=_HEADS, head_size=_DIMS, order=order
    )
    slots, blocks = scattered(len(key))
    before = canaries(blocks, layout.page_bytes)
    pages = before.copy()
    data, scale = _DIMS // 2, _DIMS // 16
    codes, all_scales = _HEADS * BLOCK_SIZE * data, _HEADS * BLOCK_SIZE * scale
    flat = pages.reshape(-1)

    def strides(width: int) -> list[int]:
        return [layout.page_bytes, *((_HEADS * width, width) if order == "NHD" else (width, BLOCK_SIZE * width))]

    name = f"NVFP4QuantizeAppendPagedKVCacheWithSlotMappingKernelILj{_DIMS}E{_TYPES[dtype]}lE"
    _module("page.cu", arch, options)[name].launch(
        (len(slots), _HEADS), 32,
        [key, value, slots, len(slots), _HEADS, BLOCK_SIZE, blocks, _HEADS * _DIMS, _DIMS, _HEADS * _DIMS, _DIMS,
         flat, flat[codes:], flat[2 * codes :], flat[2 * codes + all_scales :],
         *strides(data) * 2, *strides(scale) * 2, *(np.array([each]) for each in scales)],
        approximate="nearest",
    )  # fmt: skip
    return Pages(
        f"flashinfer-0.7/{path}/nvfp4", _said(arch, options),
        f"NVFP4QuantizeAppendPagedKVCacheWithSlotMappingKernel<{_DIMS}, {dtype}>", layout, key, value, slots, pages,
        before, scales,
    )  # fmt: skip


# --- nvfp4_quantize_append_paged_mla_kv_cache, by positions --------------------------------------------------------


def append_mla(arch: str, dtype: str, scales: tuple[np.float32, np.float32]) -> Pages:
    """The latent as NVFP4, RoPE as e4m3 with a scale of one; the tokens of one request, its pages in any order."""
    latent = inputs.shaped(inputs.hard("e2m1fn", dtype, 16, (6.0,), 12_000), 1, 512)
    rope = np.resize(inputs.patterns(dtype, 1, 64), (len(latent), 1, 64))
    layout = kvf.layout("flashinfer-mla", mode="nvfp4", block_size=BLOCK_SIZE)
    blocks = -(-len(latent) // BLOCK_SIZE)
    indices = np.random.default_rng(2).permutation(blocks).astype(np.int32)
    positions = np.arange(len(latent), dtype=np.int32)
    before = canaries(blocks, layout.page_bytes)
    pages = before.copy()
    flat = pages.reshape(-1)
    ckv, ckv_scales = BLOCK_SIZE * 256, BLOCK_SIZE * 32
    held = Struct(
        96,
        {
            0: _divisor(BLOCK_SIZE), 20: np.uint32(256), 24: np.uint32(64), 28: np.uint32(1),
            32: np.uint32(layout.page_bytes), 36: np.uint32(layout.page_bytes), 40: np.uint32(256), 44: np.uint32(64),
            48: flat, 56: flat[ckv + ckv_scales :], 64: indices, 72: np.array([0, blocks], np.int32),
        },
    )  # fmt: skip
    kernel = _module("page.cu", arch)[f"NVFP4QuantizeAppendPagedKVMlaCacheKernelILj512ELj64E{_TYPES[dtype]}iE"]
    kernel.launch(
        200, 64,
        [held, latent, rope, np.zeros(len(latent), np.int32), positions, len(latent), 512, 64, flat[ckv:],
         layout.page_bytes, 32, scales[0], np.float32(1)],
        approximate="nearest",
    )  # fmt: skip
    slots = indices[positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE
    return Pages(
        "flashinfer-0.7/append-mla/nvfp4", _said(arch, _FAST), f"NVFP4QuantizeAppendPagedKVMlaCacheKernel<{dtype}>",
        layout, np.concatenate([latent, rope], axis=2), None, slots, pages, before, scales,
    )  # fmt: skip


def _divisor(number: int) -> bytes:
    """`uint_fastdiv` of a power of two: divisor, multiplier, add, shift; the divisor."""
    return np.array([number, 0, 0, number.bit_length() - 1, number], np.uint32).tobytes()


# --- nvfp4_kv_quantize, rope_quantize_fp8 --------------------------------------------------------------------------


def kv_quantize(dtype: str) -> Iterator[Codes]:
    """Codes and scales as two tensors; what a bfloat16 NaN does beside numbers depends on its place."""
    groups = inputs.hard("e2m1fn", dtype, 16, (6.0,), 12_000)
    said = "hard rows"
    if dtype == "bfloat16":
        nan = np.isnan(groups.astype(np.float32))
        groups = np.where(nan.all(axis=1, keepdims=True), groups, inputs.numbers(groups))
        said = "hard rows, NaN only in blocks of NaN"
    x = inputs.shaped(groups, _HEADS, _DIMS)
    kernel = _module("fp4_kv_quantization.cu", "sm_100a")[f"nvfp4_quant_kernelI{_TYPES[dtype]}"]
    rows = x.reshape(-1, _DIMS)
    for scale in (each for pair in _SCALES for each in pair):
        packed = np.zeros((len(rows), _DIMS // 2), np.uint8)
        scales = np.zeros((len(rows), _DIMS // 16), np.uint8)
        kernel.launch(
            len(rows), 128, [rows, np.array([scale]), packed, scales, len(rows), _DIMS], approximate="nearest"
        )
        yield Codes(
            "flashinfer-0.7/kv-quantize/nvfp4", _said("sm_100a", _FAST), f"nvfp4_quant_kernel<{dtype}>", x,
            kvf.unpack_nibbles(packed).reshape(x.shape), scales.reshape(*x.shape[:2], -1), scale, said,
        )  # fmt: skip


def rope_quantize(arch: str, dtype: str) -> Iterator[Codes]:
    """Dims without RoPE, of every pattern; dims with RoPE at position 0, where it changes no finite number."""
    x = inputs.patterns(dtype, _HEADS, 64)
    finite = x.astype(np.float32)
    turned = np.where(np.isfinite(finite) & (abs(finite) >= 2.0**-126), x, x.dtype.type(1.5))
    tokens = len(x)
    name = f"18RopeQuantizeKernelILb1ELj16ELj1E{_TYPES[dtype]}i13__nv_fp8_e4m3E"
    cos_sin = np.concatenate([np.ones(32), np.zeros(32)]).astype(np.float32)
    for scale in inputs.SCALES:
        codes = [np.zeros(x.shape, ml_dtypes.float8_e4m3fn) for _ in range(4)]
        strides = [_HEADS * 64, 64] * 8
        _module("rope.cu", arch)[name].launch(
            (-(-tokens // 32), 4 * _HEADS), (4, 32),
            [turned, turned, x, x, *codes, cos_sin, np.zeros(tokens, np.int32), tokens, _HEADS, _HEADS, 64, 64,
             *strides, np.float32(1), scale],
            approximate="nearest",
        )  # fmt: skip
        for what, given, stored in (("dims without RoPE", x, codes[3]), ("dims with RoPE", turned, codes[1])):
            yield Codes(
                "flashinfer-0.7/rope-quantize/fp8_per_tensor", f"PTX, {arch}, fast math",
                f"RopeQuantizeKernel<{dtype}, e4m3>, {what}", given, stored, None, scale, "every pattern",
            )  # fmt: skip
