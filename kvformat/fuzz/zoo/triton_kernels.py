"""Quantizers in Triton, right and broken, run by its interpreter: what a kernel looks like where it is written."""

# ruff: noqa: ANN001, ANN202, PLR0124, SIM108 (in a kernel, types are constexpr or nothing, and NaN is x != x)

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvformat.fuzz.zoo.entry import FP8_ROW, INT8, Kernel


@contextmanager
def interpreted() -> Iterator[None]:
    """Triton's interpreter is chosen by the environment, when a kernel is decorated and when it is launched."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TRITON_INTERPRET"]
        else:
            os.environ["TRITON_INTERPRET"] = before


with interpreted():
    import torch
    import triton  # type: ignore[import-untyped,unused-ignore]
    import triton.language as tl  # type: ignore[import-untyped,unused-ignore]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _row_scale(x, qmax: tl.constexpr):  # type: ignore[no-untyped-def]
        size = tl.abs(x)
        amax = tl.max(tl.where(size < float("inf"), size, 0.0), axis=0)
        scale = tl.math.div_rn(amax, qmax)
        return tl.where(scale == 0.0, 1.0, scale)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _int8_row(x_at, codes_at, scales_at, dims: tl.constexpr, truncate: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        lanes = tl.arange(0, dims)
        x = tl.load(x_at + row * dims + lanes)
        scale = _row_scale(x, 127.0)
        scale = tl.where(tl.max((x != x).to(tl.int32), axis=0) > 0, float("nan"), scale)
        tl.store(scales_at + row, scale)
        q = tl.math.div_rn(x, scale)
        q = tl.where(q != q, 0.0, q)
        q = tl.where(q > 127.0, 127.0, tl.where(q < -127.0, -127.0, q))
        if not truncate:
            q = (q + 12582912.0) - 12582912.0  # 1.5 * 2^23: the sum is an integer, rounded to even
        tl.store(codes_at + row * dims + lanes, q.to(tl.int8))

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _fp8_row(x_at, codes_at, scales_at, dims: tl.constexpr, reciprocal: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0)
        lanes = tl.arange(0, dims)
        x = tl.load(x_at + row * dims + lanes)
        scale = _row_scale(x, 448.0)
        tl.store(scales_at + row, scale)
        if reciprocal:
            q = x * tl.math.div_rn(1.0, scale)
        else:
            q = tl.math.div_rn(x, scale)
        # integers throughout: the interpreter's own cast to 8-bit floats is wrong (triton-lang/triton#11897)
        bits = q.to(tl.int32, bitcast=True)
        size = bits & 0x7FFFFFFF
        normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
        small = tl.where(size < (121 << 23), size, 0).to(tl.float32, bitcast=True) * 512.0
        tiny = ((small + 12582912.0) - 12582912.0).to(tl.int32)
        code = tl.where(size < (121 << 23), tiny, normal)
        code = tl.where(code > 0x7E, 0x7E, code) | ((bits >> 24) & 0x80)
        code = tl.where(size > 0x7F800000, 0x7F, code)
        tl.store(codes_at + row * dims + lanes, code.to(tl.uint8))


def _run(kernel: Any, x: Any, dtype: Any, flag: bool) -> Any:
    codes, scales = torch.empty(x.shape, dtype=dtype), torch.empty(x.shape[:2], dtype=torch.float32)
    # widened by torch: the interpreter of Triton 3.9 reads subnormal bfloat16 numbers as others
    wide = x.float()
    with interpreted():
        kernel[(x.shape[0] * x.shape[1],)](wide, codes, scales, x.shape[2], flag)
    return codes, scales


def int8_rows(x: Any) -> Any:
    """int8_per_token_head, one program per row."""
    return _run(_int8_row, x, torch.int8, False)


def int8_rows_truncated(x: Any) -> Any:
    """The implicit cast of a store truncates toward zero."""
    return _run(_int8_row, x, torch.int8, True)


def fp8_rows(x: Any) -> Any:
    """fp8_per_token_head, one program per row, the conversion in integer arithmetic."""
    return _run(_fp8_row, x, torch.uint8, False)


def fp8_rows_by_reciprocal(x: Any) -> Any:
    """Multiplies by the rounded reciprocal of the scale."""
    return _run(_fp8_row, x, torch.uint8, True)


def kernels() -> list[Kernel]:
    """Every kernel; a block of Triton is a power of two long, so the head sizes are."""
    options = {"torch": "cpu", "head_dims": (16, 32, 64), "limit": 60.0}
    rows = (
        (int8_rows, INT8, None, ""),
        (int8_rows_truncated, INT8, "round-toward-zero", "vllm-project/vllm#45361"),
        (fp8_rows, FP8_ROW, None, ""),
        (fp8_rows_by_reciprocal, FP8_ROW, "reciprocal", "vllm-project/vllm#31514"),
    )
    return [
        Kernel(
            f"triton {function.__name__.replace('_', ' ')}",
            "quantizer",
            mode,
            function,
            fault,
            source,
            str(function.__doc__),
            options,
            slow=True,
        )
        for function, mode, fault, source in rows
    ]
