"""Where conversions break: complete small domains, the neighbourhood of every code and midpoint, random bits.

The values of the codes are ml_dtypes', so that no input depends on the code under test.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: the ml_dtypes twin of each float element format
ML_DTYPES = {
    "e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "e4m3fnuz": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "e5m2fnuz": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "e2m1fn": np.dtype(ml_dtypes.float4_e2m1fn),
    "e8m0fnu": np.dtype(ml_dtypes.float8_e8m0fnu),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "e2m3fn": np.dtype(ml_dtypes.float6_e2m3fn),
    "e3m2fn": np.dtype(ml_dtypes.float6_e3m2fn),
}

#: how many codes a format has, where it is not 256
CODES = {"e2m1fn": 16, "e2m3fn": 64, "e3m2fn": 64}

#: codes of a NaN INPUT, as kvformat promises them (e2m1fn, e2m3fn and e3m2fn have no NaN: their largest value)
NAN_INPUT_CODE = {
    "e4m3fn": 0x7F,
    "e5m2": 0x7F,
    "e4m3fnuz": 0x80,
    "e5m2fnuz": 0x80,
    "e2m1fn": 0x7,
    "e8m0fnu": 0xFF,
    "e4m3": 0x7C,
    "e2m3fn": 0x1F,
    "e3m2fn": 0x1F,
}

#: every code that means NaN; where there is none, the one code that a NaN becomes
NAN_CODES = {
    "e4m3fn": (0x7F, 0xFF),
    "e5m2": (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF),
    "e4m3fnuz": (0x80,),
    "e5m2fnuz": (0x80,),
    "e2m1fn": (0x7,),
    "e8m0fnu": (0xFF,),
    "e4m3": (*range(0x79, 0x80), *range(0xF9, 0x100)),
    "e2m3fn": (0x1F,),
    "e3m2fn": (0x1F,),
}


def is_nan(x: NDArray) -> NDArray[np.bool_]:
    """Which of these are NaN, read from the bits (NumPy warns when it looks at a signalling bfloat16 NaN)."""
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    infinity = np.array(np.inf, x.dtype).view(unsigned)
    return (x.view(unsigned) << 1 >> 1) > infinity


def codes_of(name: str) -> NDArray[np.uint8]:
    """Every code of the format, in order."""
    return np.arange(CODES.get(name, 256), dtype=np.uint8)


def values_of(name: str) -> NDArray[np.float64]:
    """The value of every code, by ml_dtypes."""
    return codes_of(name).view(ML_DTYPES[name]).astype(np.float64)


def largest(name: str) -> float:
    """The largest finite value, by ml_dtypes."""
    return float(ml_dtypes.finfo(ML_DTYPES[name]).max)


def all_float16() -> NDArray[np.float16]:
    """All 65,536 float16 patterns."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def all_bfloat16() -> NDArray:
    """All 65,536 bfloat16 patterns."""
    return np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16)


@cache
def turning_points(name: str) -> NDArray[np.float64]:
    """Every finite magnitude, every midpoint between two, and the midpoint where overflow starts: exact, positive."""
    values = values_of(name)
    finite = np.unique(np.abs(values[np.isfinite(values)]))
    ladder = np.append(finite, 2 * finite[-1] - finite[-2])
    if name == "e8m0fnu":
        ladder = np.append(finite, 2 * finite[-1])
    return np.unique(np.concatenate([finite, (ladder[1:] + ladder[:-1]) / 2, ladder]))


def _around(points: NDArray, steps: int) -> NDArray:
    """The positive `points` and their neighbours up to `steps` ulp of their own type away, both signs."""
    unsigned = np.uint32 if points.dtype == np.float32 else np.uint64
    bits = np.unique(points).view(unsigned)
    near = [points]
    for step in range(1, steps + 1):
        above, below = bits + unsigned(step), bits[bits >= step] - unsigned(step)
        near += [above.view(points.dtype), below.view(points.dtype)]
    magnitudes = np.unique(np.concatenate(near))
    return np.concatenate([magnitudes, -magnitudes])


def _specials(dtype: type[np.floating]) -> NDArray:
    """Zeros, infinities, quiet and signalling NaNs of both signs, the ends of the range."""
    info = np.finfo(dtype)
    unsigned = np.uint32 if dtype is np.float32 else np.uint64
    infinity = int(np.array(np.inf, dtype).view(unsigned))
    payloads = [infinity + 1, infinity + (infinity & -infinity) // 2, (1 << (info.bits - 1)) - 1]
    positive = np.concatenate(
        [
            np.array([0, info.smallest_subnormal, info.tiny, info.max, np.inf], dtype).view(unsigned),
            np.array(payloads, unsigned),
        ]
    )
    return np.concatenate([positive, positive | unsigned(1 << (info.bits - 1))]).view(dtype)


def boundary_float32(name: str) -> NDArray[np.float32]:
    """Every turning point and its two neighbours on either side, and the special values."""
    points = turning_points(name)
    points = points[points <= np.finfo(np.float32).max].astype(np.float32)
    return np.concatenate([_around(points, 2), _specials(np.float32)])


def boundary_float64(name: str) -> NDArray[np.float64]:
    """Turning points and what rounding twice gets wrong: a hair beside each, and the ties of float32 around them."""
    points = turning_points(name)
    hairs = [points * (1 + sign * 2.0**-power) for sign in (1, -1) for power in (24, 25, 26, 30, 40, 51)]
    near32 = boundary_float32(name)
    near32 = np.unique(np.abs(near32[np.isfinite(near32)])).astype(np.float64)
    half_ulps = np.ldexp(0.5, np.maximum(np.frexp(near32)[1] - 1, -126) - 23)
    traps = np.concatenate([points, *hairs, near32, near32 + half_ulps, np.abs(near32 - half_ulps)])
    return np.concatenate([_around(traps, 1), _specials(np.float64)])


def random_float32(count: int = 2_000_000, seed: int = 20250101) -> NDArray[np.float32]:
    """Random bit patterns: every exponent alike, NaN and Inf too."""
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint32).view(np.float32)


def random_float64(name: str, count: int = 500_000, seed: int = 20250102) -> NDArray[np.float64]:
    """Random bit patterns, and random numbers in the format's own range."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 64, count // 2, np.uint64).view(np.float64)
    return np.concatenate([bits, rng.uniform(-1.1, 1.1, count // 2) * largest(name)])


_DOMAINS = {
    "all float16": lambda _: all_float16(),
    "all bfloat16": lambda _: all_bfloat16(),
    "float32 boundaries": boundary_float32,
    "random float32": lambda _: random_float32(),
    "float64 boundaries": boundary_float64,
    "random float64": random_float64,
}

#: the names of the sets of inputs, and of those that rounding float64 through float32 cannot spoil
DOMAINS = tuple(_DOMAINS)
NARROW_DOMAINS = tuple(domain for domain in DOMAINS if "float64" not in domain)


@cache
def inputs(name: str, domain: str) -> NDArray:
    """The set of inputs of that name for a format, read-only."""
    x = _DOMAINS[domain](name)
    x.flags.writeable = False
    return x
