"""SGLang 0.5.23's Triton cache writers and quantizers as compiled, executed by `kvformat.torch.emulate`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray

from kvformat.torch import emulate
from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes, Pages
from tests.oracle.libraries import array, nibbles, rows, tensor

SOURCE = sources.SGLANG
_OPS = "sglang.kernels.ops"
_HEADS, _DIMS = 2, 128
#: both compile the clamp to min.xorsign.abs, which makes a NaN +448
_TARGETS = ("sm_90", "sm_100")


def _no(*_: Any) -> bool:
    return False


_GIVEN: dict[str, dict[str, Any]] = {
    "sglang.srt.utils": {
        **dict.fromkeys(("is_cuda", "is_hip", "is_musa", "is_xpu", "is_npu", "is_cpu"), _no),
        "ceil_align": lambda x, y: -(-x // y) * y,
    },
    "sglang.srt.runtime_context": {"get_platform": lambda: SimpleNamespace(is_blackwell=False)},
}


def _module(name: str) -> ModuleType:
    """One file; what it imports of SGLang stands for nothing, and no device is there."""
    with importing.package(sources.fetch(SOURCE), "sglang", {f"{_OPS}.{name}"}, _GIVEN):
        return importlib.import_module(f"{_OPS}.{name}")


def answers() -> Iterator[Codes | Pages]:
    """Everything that is run, one answer at a time."""
    for target in _TARGETS:
        yield from groups(target)
        yield from int8(target)
        yield dsa(target)
        yield from mxfp8_store(target)
        yield from indexer(target)
        yield from commit(target)
        yield from latent_store(target)


def _hard(element: str, dtype: str, width: int, tops: tuple[float, ...], count: int) -> NDArray[Any]:
    return inputs.shaped(inputs.hard(element, dtype, width, tops, count), _HEADS, _DIMS)


def _how(target: str) -> str:
    return f"Triton {triton.__version__}, {target}, div.full to the nearest"


def groups(target: str) -> Iterator[Codes]:
    """`per_token_group_quant_fp8` in groups of 128, scales of rows and of columns."""
    module = _module("quantization.fp8_kernel")
    for dtype in ("bfloat16", "float32"):
        x = _hard("e4m3fn", dtype, _DIMS, (448.0,), 600)
        for path, columns in (("triton-group", False), ("triton-group-colmajor", True)):
            flat = rows(x)
            shape = (1, len(flat)) if columns else (len(flat), 1)
            scales = torch.empty(shape, dtype=torch.float32)
            with emulate(target):
                codes, _ = module._per_token_group_quant_8bit_raw(
                    flat, _DIMS, column_major_scales=columns, dtype=torch.float8_e4m3fn,
                    output_s=scales.T if columns else scales,
                )  # fmt: skip
            yield Codes(
                f"sglang-0.5/{path}/fp8_per_tile", _how(target),
                f"_per_token_group_quant_8bit{'_colmajor' if columns else ''}", x, array(codes).reshape(x.shape),
                scales.numpy().reshape(*x.shape[:2], 1), None,
            )  # fmt: skip


def int8(target: str) -> Iterator[Codes]:
    """`per_token_quant_int8` of rows, `per_token_group_quant_int8` of groups of 128."""
    module = _module("quantization.int8_kernel")
    for dtype in ("bfloat16", "float32"):
        x = _hard("int8", dtype, _DIMS, (127.0,), 600)
        with emulate(target):
            codes, scales = module.per_token_quant_int8(rows(x))
        yield Codes(
            "sglang-0.5/triton/int8_per_token_head", _how(target), "_per_token_quant_int8", x,
            array(codes).reshape(x.shape), scales.numpy().reshape(x.shape[:2]), None,
        )  # fmt: skip
        with emulate(target):
            codes, scales = module.per_token_group_quant_int8(rows(x), _DIMS)
        yield Codes(
            "sglang-0.5/triton-group/int8_per_tile", _how(target), "_per_token_group_quant_int8", x,
            array(codes).reshape(x.shape), scales.numpy().reshape(*x.shape[:2], 1), None,
        )  # fmt: skip


def dsa(target: str) -> Codes:
    """`quantize_k_cache`: 512 latent dims in tiles of 128, 64 dims copied."""
    module = _module("quantization.dsa_quant_k_cache")
    latent = inputs.shaped(inputs.hard("e4m3fn", "bfloat16", 128, (448.0,), 1200), 1, 512)
    x = np.concatenate([latent, np.resize(inputs.patterns("bfloat16", 1, 64), (len(latent), 1, 64))], axis=2)
    with emulate(target):
        made = module.quantize_k_cache(tensor(x[:, None]))
    records = made.view(torch.uint8).numpy().reshape(len(x), 656)
    assert (records[:, 528:].view(np.uint16) == x[:, 0, 512:].view(np.uint16)).all()
    return Codes(
        "sglang-0.5/dsa/fp8_per_tile", _how(target), "_quantize_k_cache_fast_kernel", latent,
        np.ascontiguousarray(records[:, None, :512]),
        np.ascontiguousarray(records[:, 512:528]).view(np.float32)[:, None], None,
    )  # fmt: skip


def mxfp8_store(target: str) -> Iterator[Codes]:
    """`quant_store_kv_mxfp8`; slot 0 is padding."""
    module = _module("kvcache.mxfp8_quant_store_kv")
    key = _hard("e4m3fn", "bfloat16", 32, (448.0, 1.75, 7.0), 4000)
    value = key[::-1].copy()
    page = 32
    tokens = len(key)
    blocks = -(-(tokens + 1) // page)
    caches = [torch.zeros((blocks * page, _HEADS, _DIMS), dtype=torch.float8_e4m3fn) for _ in range(2)]
    scales = [torch.zeros((blocks, _HEADS, 32, page // 32, _DIMS // 32), dtype=torch.uint8) for _ in range(2)]
    slots = torch.arange(1, tokens + 1)
    with emulate(target):
        module.quant_store_kv_mxfp8(tensor(key), tensor(value), slots, *caches, *scales, page)
    for x, cache, stored in zip((key, value), caches, scales, strict=True):
        lain = stored.numpy()[:, :, :, 0].transpose(0, 2, 1, 3).reshape(blocks * page, _HEADS, -1)
        yield Codes(
            "sglang-0.5/mxfp8-store/mxfp8", _how(target), "_mxfp8_quant_store_qkv_kernel", x,
            array(cache)[1 : tokens + 1], lain[1 : tokens + 1], None,
        )  # fmt: skip


def indexer(target: str) -> Iterator[Codes]:
    """`quantize_fp4_indexer_tensor` with its default rounding."""
    module = _module("quantization.fp4_indexer_quant")
    for dtype in ("bfloat16", "float32"):
        x = inputs.shaped(inputs.hard("e2m1fn", dtype, 32, (6.0,), 4000), 1, 128)
        with emulate(target):
            codes, scales = module.quantize_fp4_indexer_tensor(rows(x))
        yield Codes(
            "sglang-0.5/dsv4-indexer/mxfp4", _how(target), "_quantize_fp4_indexer_kernel", x,
            nibbles(codes.view(torch.uint8)).reshape(x.shape), scales.numpy().view(np.uint8).reshape(len(x), 1, 4),
            None,
        )  # fmt: skip


def commit(target: str) -> Iterator[Codes]:
    """`set_kv_buffer_prefix_valid_tiled_fp8`: the scale of K a tensor, that of V a number."""
    module = _module("kvcache.cache_move")
    for dtype in ("bfloat16", "float16", "float32"):
        x = inputs.patterns(dtype, _HEADS, 64)
        tokens, row = len(x), _HEADS * 64
        for scale in inputs.SCALES[:3]:
            caches = [torch.zeros((tokens, row), dtype=torch.float8_e4m3fn) for _ in range(2)]
            with emulate(target):
                module.set_kv_buffer_prefix_valid_tiled_fp8[(1, tokens, 1)](
                    tensor(x), tensor(x), *caches, torch.arange(tokens), torch.tensor([tokens], dtype=torch.int32),
                    float(scale), float(scale), row, row, row, row, tokens, ROW_ELEMS=row, ELEMS_PER_TILE=row,
                    FP8_MAX=448.0, K_SCALE_IS_TENSOR=True, V_SCALE_IS_TENSOR=False,
                )  # fmt: skip
            for path, cache in zip(("commit", "commit-host-scalar"), caches, strict=True):
                yield Codes(
                    f"sglang-0.5/{path}/fp8_per_tensor", _how(target).partition(", div")[0],
                    "set_kv_buffer_prefix_valid_tiled_fp8", x, array(cache).reshape(x.shape), None, scale,
                    "every pattern" if dtype != "float32" else "around every code",
                )  # fmt: skip


def latent_store(target: str) -> Iterator[Codes]:
    """`set_mla_kv_buffer_fp8_quant_kernel`: a cast; slot 0 is padding."""
    module = _module("kvcache.mla_buffer")
    for dtype in ("bfloat16", "float16"):
        x = inputs.patterns(dtype, 1, 576)
        buffer = torch.zeros((len(x) + 1, 1, 576), dtype=torch.float8_e4m3fn)
        latent, rope = (tensor(np.ascontiguousarray(x[..., dims])) for dims in (slice(0, 512), slice(512, 576)))
        with emulate(target):
            module.set_mla_kv_buffer_fp8_quant_kernel[(len(x), 5)](
                buffer, latent, rope, torch.arange(1, len(x) + 1), 0, 576, 512, 64, 512, 64, BLOCK=128
            )
        yield Codes(
            "sglang-0.5/mla-store/fp8_unscaled", _how(target).partition(", div")[0],
            "set_mla_kv_buffer_fp8_quant_kernel", x, array(buffer)[1:], None, None, "every pattern",
        )  # fmt: skip
