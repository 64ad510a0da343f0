"""The element formats by hand, and the inputs on which conversions break."""

from __future__ import annotations

import math
from fractions import Fraction

import ml_dtypes
import numpy as np

FLOATS = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1fn")
INTEGERS = ("int8", "int4")
ALL = (*FLOATS, "e8m0fnu", *INTEGERS)
ROUNDINGS = ("nearest_even", "up", "down")

#: every way to encode: (format, overflow, rounding)
POLICIES = (
    *((name, overflow, "nearest_even") for name in (*FLOATS, *INTEGERS) for overflow in ("saturate", "ieee")),
    *(("e8m0fnu", overflow, rounding) for rounding in ROUNDINGS for overflow in ("saturate", "ieee")),
)

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ML_DTYPES = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "e4m3": ml_dtypes.float8_e4m3,
    "e2m3fn": ml_dtypes.float6_e2m3fn,
    "e3m2fn": ml_dtypes.float6_e3m2fn,
}


def ladder(name):
    """The magnitudes of codes 0, 1, 2, ... by hand, and at the end the one that would follow the largest finite one.

    OCP OFP8 and MX: subnormals are m * 2^(1 - bias - mantissa bits), then every binade has 2^mantissa bits steps.
    """
    if name == "e8m0fnu":
        return [Fraction(2) ** (code - 127) for code in range(256)]
    if name in INTEGERS:
        return [Fraction(n) for n in range({"int8": 129, "int4": 9}[name])]
    mantissa, smallest, largest_code = {
        "e4m3fn": (3, Fraction(1, 2**9), 0x7E),
        "e5m2": (2, Fraction(1, 2**16), 0x7B),
        "e4m3fnuz": (3, Fraction(1, 2**10), 0x7F),
        "e5m2fnuz": (2, Fraction(1, 2**17), 0x7F),
        "e2m1fn": (1, Fraction(1, 2), 0x7),
    }[name]
    steps = [Fraction(0)]
    unit = smallest
    while len(steps) <= largest_code + 1:
        # the first two binades (subnormals, then the smallest normals) share one unit, each later one doubles it
        if len(steps) >= 2 ** (mantissa + 1) and len(steps) % 2**mantissa == 1:
            unit *= 2
        steps.append(steps[-1] + unit)
    return steps


def midpoints(name):
    """(lower code, midpoint) of every two neighbours, the last one where overflow starts; exact floats."""
    steps = ladder(name)
    found = [(code, float((steps[code] + steps[code + 1]) / 2)) for code in range(len(steps) - 1)]
    return [each for each in found if math.isfinite(each[1])]


def all_halves(dtype):
    """All 65,536 patterns of float16 or bfloat16."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype)


def critical_neighbours(name, dtype):
    """Every magnitude and midpoint, the float on either side of each, of both signs, and every special value."""
    steps = [float(step) for step in ladder(name)] + [point for _, point in midpoints(name)]
    with np.errstate(over="ignore"):  # 2^128 is Inf in float32
        points = np.array([0.0, *steps], np.float64).astype(dtype)
    info = np.finfo(dtype)
    points = np.concatenate([points, np.array([info.max, info.tiny, info.smallest_subnormal, np.inf, np.nan], dtype)])
    with np.errstate(over="ignore"):
        near = [points, np.nextafter(points, dtype(np.inf)), np.nextafter(points, dtype(-np.inf))]
    x = np.concatenate(near)
    return np.concatenate([x, -x])
