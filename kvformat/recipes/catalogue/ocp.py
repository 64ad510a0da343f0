"""OCP Microscaling (MX) 1.0: MXFP4 and MXFP8 with the four ways to choose the shared exponent.

The specification (section 6.3) requires `floor` at least and leaves NaN, Inf and the other rules to the implementation.
Here they are the plain arithmetic: every scale is the value of its byte, exponents are exact, a NaN makes the scale of
its block NaN. torchao-0.18 and compressed-tensors-0.20 are two implementations, with departures of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: element format, its largest value, the exponent of that, and from where on `even` takes the next exponent
_FORMATS = {
    "mxfp4": ("e2m1fn", "6", 2, "1.75"),
    "mxfp8": ("e4m3fn", "448", 8, "1.9375"),
}

_NOTES = {
    "floor": "The exponent of amax minus that of the largest element; amax / scale may exceed that element and "
    "saturate.",
    "ceil": "As floor, but one more where amax is no power of two: wastes a bit, amax = 5 takes 2^1 for e2m1fn.",
    "rceil": "amax / largest element, rounded up to a power of two: nothing saturates. This is cuBLAS and the "
    "instruction cvt.rp.satfinite.ue8m0x2.",
    "even": "As floor, after amax has been rounded to the element's mantissa width, halves up.",
}

_RULES = {
    "floor": "p",
    "ceil": "select(pow2(a, down) == a, p, mul(p, 2))",
    "even": "select(le(mul(pow2(a, down), {even}), a), mul(p, 2), p)",
}


def _exponent(rule: str, top: str, emax: int, even: str) -> str:
    if rule == "rceil":
        return f"s = pow2(div(amax(x), {top}), up)"
    return f"a = amax(x)\np = mul(pow2(a, down), {2.0**-emax!r})\ns = max(p, {_RULES[rule].format(even=even)})"


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
        "code": f"q = div(x, s)\nc = encode(select(isnan(s), {'0' if name == 'mxfp4' else 'nan'}, q), {element})",
        "value": "v = mul(c, s)",
        "source": "OCP Microscaling Formats (MX) 1.0, section 6.3",
        "notes": f"{_NOTES[rule]} Inf takes the largest scale, 0xFE, and the largest code.",
    }


ENTRIES: tuple[Mapping[str, Any], ...] = tuple(
    _entry(rule, name) for name in _FORMATS for rule in ("floor", "ceil", "rceil", "even")
)
