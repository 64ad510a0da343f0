"""OCP Microscaling (MX) 1.0: MXFP4 and MXFP8 with the four ways to choose the shared exponent.

The specification (section 6.3) requires `floor` at least and leaves NaN and Inf to the implementation; they are those
of torchao 0.18.0, torchao/prototype/mx_formats/mx_tensor.py L109-410, which has all four.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: element format, its exponent range, and what the even rule adds half an ulp of before it takes the exponent
_FORMATS = {
    "mxfp4": ("e2m1fn", "6", 2, "1.75"),
    "mxfp8": ("e4m3fn", "448", 8, "1.9375"),
}

_NOTES = {
    "floor": "Exponent of amax minus that of the largest element: amax / scale may exceed the largest value, which "
    "then saturates.",
    "ceil": "Exponent of amax, rounded up, minus that of the largest element: wastes a bit, amax = 5 takes 2^1.",
    "even": "amax is first rounded to the element's mantissa, halves up, so that saturation is rare.",
    "rceil": "amax / largest value, rounded up to a power of two: never saturates. cuBLAS and cvt.rp.satfinite.ue8m0 "
    "compute this; torchao in eager mode takes a binary32 logarithm, which forgets the last bits.",
}

# the exponent rules, on p = 2^floor(log2 amax) / 2^emax; 2^(128 - emax) is what the exponent field of an Inf gives
_RULES = {
    "floor": "p",
    "ceil": "select(pow2(a, down) == a, p, mul(p, 2))",
    "even": "select(le(mul(pow2(a, down), {even}), a), mul(p, 2), p)",
}


def _exponent(rule: str, top: str, emax: int, even: str) -> str:
    if rule == "rceil":
        return f"s = pow2(div(amax(x), {top}), up)"
    return f"""
        a = amax(x)
        p = mul(pow2(a, down), {2.0**-emax!r})
        s = select(isinf(a), {2.0 ** (128 - emax)!r}, {_RULES[rule].format(even=even)})
    """


def _code(rule: str, element: str, top: str) -> str:
    # 0xFF is read as the pattern of an Inf, 0x00 as 2^-126; rceil multiplies, and by 1 for 0x00
    scaled = (
        f"q = clamp(mul(x, select(le(s, {2.0**-127!r}), 1, div(1, s))), -{top}, {top})"
        if rule == "rceil"
        else f"q = div(x, select(isnan(s), inf, max(s, {2.0**-126!r})))"
    )
    nan = "q = select(isnan(q), 1.5, q)" if element == "e2m1fn" else ""  # f32_to_f4_unpacked shifts the NaN's bits out
    return f"{scaled}\n{nan}\nc = encode(q, {element})"


def _entry(rule: str, name: str) -> Mapping[str, Any]:
    element, top, emax, even = _FORMATS[name]
    return {
        "name": f"ocp-mx-1.0/{rule}/{name}",
        "mode": name,
        "element": element,
        "scales": [
            {
                "name": "s",
                "granularity": "per_block_32",
                "store": "e8m0fnu down",
                "program": _exponent(rule, top, emax, even),
            }
        ],
        "code": _code(rule, element, top),
        "value": "v = mul(c, s)",
        "source": "OCP Microscaling Formats (MX) 1.0 section 6.3; torchao 0.18.0, "
        "torchao/prototype/mx_formats/mx_tensor.py L109-410",
        "notes": f"{_NOTES[rule]} The byte 0x00 is used as 2^-126 and read as 2^-127; a NaN makes the scale 0xFF.",
    }


ENTRIES: tuple[Mapping[str, Any], ...] = tuple(
    _entry(rule, name) for name in _FORMATS for rule in ("floor", "ceil", "rceil", "even")
)
