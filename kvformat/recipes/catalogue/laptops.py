"""MLX, OpenVINO, ExecuTorch and ONNX Runtime: how the engines of laptops and phones quantize K and V."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: the largest finite binary32 number, from which minimum and maximum may start
_MOST = "3.4028234663852886e+38"
_RAN = {"status": "verified against the library"}

Entry = Mapping[str, Any]


def _parameters(granularity: str, store: str, program: str, *names: str) -> list[Entry]:
    """Parameters of one granularity and format, all made by the program of the first one."""
    programs = [program, *([""] * (len(names) - 1))]
    return [
        {"name": name, "granularity": granularity, "store": store, "program": each}
        for name, each in zip(names, programs, strict=True)
    ]


# --- MLX: codes by the float32 scale and bias, both stored in the dtype of x -----------------------------------------


def _mlx(path: str, bits: int, group: int, source: str, notes: str, **more: Any) -> Entry:
    gpu = path == "gpu"
    ties, high, low = ("half_away", "0", _MOST) if gpu else ("half_even", "-inf", "inf")
    most = 2**bits - 1
    program = f"""
        high = max_from(x, {high})
        low = min_from(x, {low})
        scale = max_number(div(sub(high, low), {most}), 1e-7)
        side = lt(abs(high), abs(low))
        scale = select(side, scale, neg(scale))
        edge = select(side, low, high)
        q0 = round(div(edge, scale), {ties})
        zero = eq(q0, 0)
        scale = select(zero, scale, div(edge, q0))
        bias = select(zero, 0, edge)
        s = to(scale, input)
        b = to(bias, input)
    """
    code = f"clamp(round(div(sub(x, bias), scale), {ties}), 0, {most})"
    return {
        "name": f"mlx-0.32/{path}/affine{bits}_group{group}",
        "mode": f"affine{bits}_group{group}",
        "element": f"uint{bits}",
        "scales": _parameters(f"(1, 1, {group})", "input", program, "s", "b"),
        "code": f"c = encode({code}, uint{bits})",
        "value": "v = add(mul(c, s), b)",
        "source": f"mlx 0.32, {source}",
        "notes": notes,
        **more,
    }


_MLX_CPU = (
    "mx.quantize on a CPU. The scale is usually negative and the bias the value of largest magnitude, which has code "
    "0; ties go to even; a NaN is passed over."
)
_MLX_GPU = (
    "Metal and CUDA: ties go away from zero, and the maximum starts from 0, so a group of negative values has twice "
    "the scale of the CPU's."
)

# --- OpenVINO: a float zero point; V by token divides by 255 ---------------------------------------------------------


def _openvino(bits: int, notes: str) -> Entry:
    most = 2**bits - 1
    program = f"""
        low = min_from(x, {_MOST})
        s = div(sub(max_from(x, -{_MOST}), low), {most})
        s = select(s == 0, 1e-4, s)
        zp = neg(div(low, s))
    """
    return {
        "name": f"openvino-2026.4/by-token/uint{bits}_per_token_head",
        "mode": f"uint{bits}_per_token_head",
        "element": f"uint{bits}",
        "scales": _parameters("per_token_head", "float32", program, "s", "zp"),
        "code": f"c = encode(clamp(round(fma(x, rcp(s), zp), half_even), 0, {most}), uint{bits})",
        "value": "v = mul(sub(c, zp), s)",
        "source": "openvino 2026.4.1, intel_cpu/src/nodes/kernels/scaled_attn/attn_quant.cpp",
        "notes": notes,
        **_RAN,
    }


# --- ExecuTorch: an integer zero point, added before the rounding by the exporter, after it by the kernel -------------

_EXECUTORCH = [
    {
        "name": "s",
        "granularity": "per_token_head",
        "program": """
            low = min(smallest(x), 0)
            high = max(largest(x), 0)
            s = max(div(sub(high, low), 255), 1.1920928955078125e-07)
        """,
    },
    {
        "name": "zp",
        "granularity": "per_token_head",
        "store": "int8",
        "program": """
            below = div(low, s)
            above = div(high, s)
            first = lt(0, add(add(-128, below), add(127, above)))
            zp = select(first, sub(-128, below), sub(127, above))
            zp = round(clamp(zp, -128, 127), half_even)
        """,
    },
]


def _executorch(path: str, code: str, source: str, notes: str, **more: Any) -> Entry:
    return {
        "name": f"executorch-1.5/{path}/int8_zero_per_token_head",
        "mode": "int8_zero_per_token_head",
        "element": "int8",
        "scales": _EXECUTORCH,
        "code": f"c = encode(clamp({code}, -128, 127), int8)",
        "value": "v = mul(sub(c, zp), s)",
        "source": f"executorch 1.5.1, {source}",
        "notes": notes,
        **_RAN,
        **more,
    }


# --- ONNX Runtime: scales are given ----------------------------------------------------------------------------------


def _onnxruntime(bits: int, notes: str) -> Entry:
    low, high, added = (-128, 127, 0) if bits == 8 else (-8, 7, 8)
    element = "int8" if bits == 8 else "uint4"
    code = f"""
        q = round(mul(x, select(ne(s, 0), rcp(s), 1)), half_even)
        q = select(isnan(q), {high}, clamp(q, {low}, {high}))
        c = encode(add(q, {added}), {element})
    """
    scale = {"name": "s", "granularity": "per_tensor", "program": f"s = div(amax_number(x), {high})"}
    return {
        "name": f"onnxruntime-1.32/gqa/int{bits}_per_tensor",
        "mode": f"int{bits}_per_tensor",
        "element": element,
        "scales": [{**scale, "may_be_given": True}],
        "code": code,
        "value": f"v = mul(sub(c, {added}), s)",
        "source": "onnxruntime 1.32.0, core/mlas/lib/qkv_quant.cpp",
        "notes": notes,
        **_RAN,
    }


ENTRIES: tuple[Entry, ...] = (
    *(
        _mlx("cpu", bits, group, "mlx/backend/cpu/quantized.cpp", _MLX_CPU, **_RAN)
        for bits, group in ((3, 64), (4, 64), (8, 64))
    ),
    _mlx("gpu", 4, 64, "mlx/backend/metal/kernels/quantized.h, mlx/backend/cuda/quantized", _MLX_GPU),
    _openvino(8, "V by default, K with BY_TOKEN. The zero point is a float and is not rounded; a NaN has code 0."),
    _openvino(4, "u4: the even dim lies in the high nibble. The zero point is a float."),
    _executorch(
        "eager",
        "round(add(mul(x, rcp(s)), zp), half_even)",
        "examples/models/llama/source_transformation/custom_kv_cache.py",
        "What the exporter's model computes: the zero point is added before the rounding, in binary64.",
        precision="float64",
    ),
    _executorch(
        "kernel",
        "add(zp, round(mul(x, rcp(s)), half_even))",
        "kernels/quantized/cpu/op_quantize.cpp",
        "What the runtime computes: the zero point is added after the rounding. With an odd one every tie differs.",
    ),
    _onnxruntime(
        8,
        "GroupQueryAttention with kv_cache_bit_width 8. The operator takes its scales and calibrates none; a NaN is "
        "stored as 127. Without a scale, amax / 127 is taken here.",
    ),
    _onnxruntime(
        4,
        "GroupQueryAttention with kv_cache_bit_width 4: codes are stored with 8 added, the even dim in the low nibble. "
        "Without a scale, amax / 7 is taken here.",
    ),
)
