"""Recipes of engines outside GPU servers (ggml, MLX, OpenVINO, ONNX Runtime, ExecuTorch, quanto, KIVI), as data.

Their arithmetic and the bytes that `test_engines` holds them to were seen by running the engines: ggml 0.25.3,
MLX 0.32.4 on a CPU, OpenVINO 2026.4.1, ONNX Runtime 1.32.0, ExecuTorch 1.5.1, optimum-quanto 0.2.7. KIVI
was read, not run.
"""

from __future__ import annotations

from typing import Any

from kvformat.recipes.catalogue import recipe
from kvformat.recipes.entry import parse_recipe
from kvformat.recipes.program import Recipe

Scale = dict[str, Any]


def _recipe(name: str, element: str, scales: list[Scale], code: str, value: str, **more: Any) -> Recipe:
    top = {"name": name, "mode": "none", "element": element, "source": "engine"}
    return parse_recipe({**top, "scales": scales, "code": code, "value": value, **more})


def _scales(granularity: str, store: str, program: str, *names: str, **more: Any) -> list[Scale]:
    """Parameters that the program of the first one makes, all of one granularity and store format."""
    programs = [program, *([""] * (len(names) - 1))]
    return [
        {"name": name, "granularity": granularity, "store": store, "program": each, **more}
        for name, each in zip(names, programs, strict=True)
    ]


# --- ggml: groups of 32; d is stored as float16, codes are made with the float32 one -----------------------------


Q8_0, Q8_0_AVX, Q8_0_NEON, Q8_0_WASM = (
    recipe(f"ggml-0.25/{platform}/q8_0") for platform in ("reference", "avx", "neon", "wasm")
)


Q4_0, Q4_1, Q5_0, Q5_1 = (recipe(f"ggml-0.25/reference/{name}") for name in ("q4_0", "q4_1", "q5_0", "q5_1"))

#: a least-squares scale, made from the codes; a block below 1e-15 leaves its codes as they were
IQ4_NL = _recipe(
    "ggml/iq4_nl", "iq4_nl",
    [
        {"name": "top", "granularity": "per_block_32", "program": """
            top = signed_amax(x)
            tiny = lt(abs(top), 1e-15)
            id = rcp(div(top, -127))
        """},
        {"name": "d", "granularity": "per_block_32", "store": "float16", "after": True, "sums": """
            w = mul(x, x)
            qx = add(qx, mul(mul(w, c), x))
            qq = add(qq, mul(mul(w, c), c))
        """, "program": "d = select(tiny, 0, div(qx, qq))"},
    ],
    "c = encode(mul(x, id), iq4_nl)", "v = mul(c, d)", undefined="tiny",
)  # fmt: skip


# --- MLX, affine, on a CPU: codes by the float32 scale and bias, both stored in the dtype of x -------------------


def mlx(bits: int, group: int, start: str = "inf", ties: str = "half_even") -> Recipe:
    """MLX's affine quantization; start, ties: where minimum and maximum begin, and how ties round."""
    program = f"""
        high = max_from(x, {"-inf" if start == "inf" else "0"})
        low = min_from(x, {"inf" if start == "inf" else "3.4028234663852886e+38"})
        scale = max_number(div(sub(high, low), {2**bits - 1}), 1e-7)
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
    code = f"c = encode(clamp(round(div(sub(x, bias), scale), {ties}), 0, {2**bits - 1}), uint{bits})"
    scales = _scales(f"(1, 1, {group})", "input", program, "s", "b")
    return _recipe(f"mlx/affine-{bits}", f"uint{bits}", scales, code, "v = add(mul(c, s), b)")


# --- OpenVINO: a float zero point; V by token divides by 255, K by channel multiplies by 1 / 255 -----------------


def openvino(granularity: str, bits: int) -> Recipe:
    """OpenVINO's u8 and u4, by token (a group of dims) or by channel (32 tokens)."""
    most = 2**bits - 1
    wide = "sub(max_from(x, -3.4028234663852886e+38), low)"
    step = f"div({wide}, {most})" if granularity == "per_token_head" else f"mul({wide}, div(1, {most}))"
    program = f"""
        low = min_from(x, 3.4028234663852886e+38)
        s = {step}
        s = select(s == 0, 1e-4, s)
        zp = neg(div(low, s))
    """
    code = f"c = encode(clamp(round(fma(x, rcp(s), zp), half_even), 0, {most}), uint{bits})"
    scales = _scales(granularity, "float32", program, "s", "zp")
    return _recipe(f"openvino/u{bits}", f"uint{bits}", scales, code, "v = mul(sub(c, zp), s)")


# --- ExecuTorch: an integer zero point, added before the rounding by the exporter, after it by the kernel --------

_EXECUTORCH = [
    {"name": "s", "granularity": "per_token_head", "program": """
        low = min(smallest(x), 0)
        high = max(largest(x), 0)
        s = max(div(sub(high, low), 255), 1.1920928955078125e-07)
    """},
    {"name": "zp", "granularity": "per_token_head", "store": "int8", "program": """
        below = div(low, s)
        above = div(high, s)
        first = lt(0, add(add(-128, below), add(127, above)))
        zp = select(first, sub(-128, below), sub(127, above))
        zp = round(clamp(zp, -128, 127), half_even)
    """},
]  # fmt: skip

EXECUTORCH_EAGER = _recipe(
    "executorch/eager", "int8", _EXECUTORCH,
    "c = encode(clamp(round(add(mul(x, rcp(s)), zp), half_even), -128, 127), int8)",
    "v = mul(sub(c, zp), s)", precision="float64",
)  # fmt: skip
EXECUTORCH_KERNEL = _recipe(
    "executorch/kernel", "int8", _EXECUTORCH,
    "c = encode(clamp(add(zp, round(mul(x, rcp(s)), half_even)), -128, 127), int8)",
    "v = mul(sub(c, zp), s)",
)  # fmt: skip


# --- ONNX Runtime: scales are given, for the tensor or for each channel ------------------------------------------


def onnxruntime(granularity: str, bits: int) -> Recipe:
    """GroupQueryAttention's cache; int4 is stored with 8 added."""
    low, high, added = (-128, 127, 0) if bits == 8 else (-8, 7, 8)
    code = f"""
        q = round(mul(x, select(ne(s, 0), rcp(s), 1)), half_even)
        q = select(isnan(q), {high}, clamp(q, {low}, {high}))
        c = encode(add(q, {added}), {"int8" if bits == 8 else "uint4"})
    """
    scale = {"name": "s", "granularity": granularity, "program": "s = div(amax(x), 127)", "may_be_given": True}
    return _recipe(
        f"onnxruntime/{bits}", "int8" if bits == 8 else "uint4", [scale], code, f"v = mul(sub(c, {added}), s)"
    )


# --- quanto: everything in the dtype of x, groups of the flattened order -----------------------------------------


def quanto(bits: int, granularity: str = "64 of (heads, tokens, dims)") -> Recipe:
    """Optimum-quanto's axis 0: rows of 64 consecutive values, heads outermost."""
    program = f"""
        low = smallest(x)
        s = div(sub(largest(x), low), {2**bits - 1})
        shift = neg(low)
    """
    code = f"c = encode(clamp(round(div(add(x, shift), s), half_even), 0, {2**bits - 1}), uint{bits})"
    scales = _scales(granularity, "input", program, "s", "shift", precision="input")
    return _recipe(
        f"quanto/{bits}",
        f"uint{bits}",
        scales,
        code,
        "v = sub(mul(s, c), shift)",
        precision="input",
        value_precision="input",
    )


def kivi(granularity: str, bits: int) -> Recipe:
    """KIVI: keys in `(32, 1, 1)`, values in `per_block_32`, everything in the dtype of the model."""
    program = f"""
        low = smallest(x)
        s = div(sub(largest(x), low), {2**bits - 1})
    """
    code = f"c = encode(round(clamp(div(sub(x, low), s), 0, {2**bits - 1}), half_even), uint{bits})"
    scales = _scales(granularity, "input", program, "s", "low", precision="input")
    return _recipe(
        f"kivi/{bits}",
        f"uint{bits}",
        scales,
        code,
        "v = add(mul(c, s), low)",
        precision="input",
        value_precision="input",
    )
