"""torchao 0.18.0: torchao/prototype/mx_formats, torchao/float8 and torchao/quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VERIFIED = "verified against the library"

# f32_to_f4_unpacked turns a NaN into a code that depends on its payload; 2.0 with its sign for the usual one
_FP4 = """
    q = clamp(q, -6, 6)
    q = select(isnan(q), copysign(2, q), q)
    c = encode(q, e2m1fn)
"""

_FP8 = "c = encode(clamp(q, -448, 448), e4m3fn)"

_MX_SOURCE = "torchao 0.18.0, torchao/prototype/mx_formats/mx_tensor.py L109-410"

# Exponents are taken from the bits of amax, where Inf is one more than the largest exponent: 2^128, in binary64. A
# scale byte of 0 is divided by as if it were 2^-126; a NaN scale as if it were Inf, so only NaN elements stay NaN.
_MX_QUOTIENT = """
    d = select(isnan(s), inf, max(s, 1.1754943508222875e-38))
    q = div(x, d)
"""


def _mx(rounding: str, mode: str, program: str, notes: str, code: str = _MX_QUOTIENT, **more: Any) -> Mapping[str, Any]:
    four = mode == "mxfp4"
    return {
        "name": f"torchao-0.18/{rounding}/{mode}",
        "mode": mode,
        "element": "e2m1fn" if four else "e4m3fn",
        "scales": [
            {"name": "s", "granularity": "per_block_32", "store": "e8m0fnu down", "program": program, **more},
        ],
        "code": code + (_FP4 if four else _FP8),
        "value": "v = mul(c, s)",
        "source": _MX_SOURCE,
        "status": _VERIFIED,
        "notes": notes,
    }


def _mx_family(mode: str, top: str, largest_power: str, tie: str) -> tuple[Mapping[str, Any], ...]:
    binary64 = {"precision": "float64"}
    # tie: the mantissa from which the element's own mantissa (1 or 3 bits) would round up to the next power of two
    return (
        _mx(
            "floor",
            mode,
            f"s = mul(pow2(min(amax(x), 3.402823669209385e+38), down), {largest_power})",
            "OCP's rule, torchao's default: the largest element may exceed the format and saturates.",
            **binary64,
        ),
        _mx(
            "ceil",
            mode,
            f"s = mul(pow2(min(amax(x), 3.402823669209385e+38), up), {largest_power})",
            "Rounds amax itself up, so blocks whose amax is no power of two lose one bit.",
            **binary64,
        ),
        _mx(
            "even",
            mode,
            f"""
                a = min(amax(x), 3.402823669209385e+38)
                p = pow2(a, down)
                p = select(le(mul(p, {tie}), a), mul(p, 2), p)
                s = mul(p, {largest_power})
            """,
            f"amax from {tie} * 2^k, where the element's mantissa rounds up, counts as 2^(k+1).",
            **binary64,
        ),
        _mx(
            "rceil",
            mode,
            f"s = pow2_approx(div(amax(x), {top}), up)",
            "cuBLAS's rule: the smallest power of two that holds amax, by ceil(log2 in binary32). A scale byte of 0 "
            "multiplies by 1, not by 2^127.",
            code="q = mul(x, select(s == 5.877471754111438e-39, 1, div(1, s)))\n",
        ),
    )


def _float8(path: str, mode: str, scale: Mapping[str, Any], **entry: Any) -> Mapping[str, Any]:
    per_tensor = mode == "fp8_per_tensor"
    return {
        "name": f"torchao-0.18/{path}/{mode}",
        "mode": mode,
        "element": "e4m3fn",
        "scales": [
            {
                "name": "s",
                "granularity": "per_tensor" if per_tensor else "per_token_head",
                "may_be_given": per_tensor,
                **scale,
            }
        ],
        "status": _VERIFIED,
        **entry,
    }


_TRAINING: Mapping[str, Any] = {
    "scale": {
        "program": "s = div(448, max(amax(x), 1e-12))",
        "precision": "float64",
        "multiplier": "encode",
    },
    "code": f"q = mul(x, s)\n{_FP8}",
    "value": "v = div(c, s)",
    "source": "torchao 0.18.0, torchao/float8/float8_utils.py L35-140, float8_training_tensor.py L130-170",
    "notes": "The scale is the encode multiplier, computed in binary64; amax below 1e-12 counts as 1e-12.",
}
_AFFINE: Mapping[str, Any] = {
    "scale": {"program": "s = to(div(amax(x), 448), input)"},
    "code": f"q = div(x, s)\n{_FP8}",
    "value": "v = mul(c, s)",
    "source": "torchao 0.18.0, torchao/quantization/quant_primitives.py L2243-2375",
    "notes": "The scale is rounded to the input's dtype, the quotient is not. All zeros give 0 / 0, NaN.",
}

ENTRIES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "torchao-0.18/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {"name": "g", "granularity": "per_tensor", "program": "g = div(amax(x), 2688)", "may_be_given": True},
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": "bs = clamp(div(div(amax(x), 6), g), 0.015625, 448)",
            },
        ],
        "code": f"q = mul(x, div(div(1, g), bs)){_FP4}",
        "value": "v = mul(c, mul(g, bs))",
        "source": "torchao 0.18.0, torchao/prototype/mx_formats/nvfp4_tensor.py L754-867",
        "status": _VERIFIED,
        "notes": "Block scales are at least 2^-6, the smallest normal: never subnormal, never 0.",
    },
    {
        "name": "torchao-0.18/nvfp4_single_level",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": "bs = clamp(div(amax(x), 6), 0.015625, 448)",
            },
        ],
        "code": f"q = mul(x, div(1, bs)){_FP4}",
        "value": "v = mul(c, bs)",
        "source": "torchao 0.18.0, torchao/prototype/mx_formats/nvfp4_tensor.py L810-822",
        "status": _VERIFIED,
        "notes": "Without a per-tensor scale.",
    },
    *_mx_family("mxfp4", top="6", largest_power="0.25", tie="1.75"),
    *_mx_family("mxfp8", top="448", largest_power="0.00390625", tie="1.9375"),
    *(
        _float8(path, mode, **how)
        for path, how in (("float8", _TRAINING), ("affine", _AFFINE))
        for mode in ("fp8_per_tensor", "fp8_per_token_head")
    ),
)
