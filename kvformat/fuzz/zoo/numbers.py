"""Conversions to the element formats in plain NumPy, written apart from kvformat's codecs: casts and tables."""

from __future__ import annotations

from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

#: a NumPy array: kernels are written for people to read, not for the type checker
Array: TypeAlias = Any

ONE = np.float32(1)
NAN = np.float32(np.nan)
_NARROW: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_SMALLEST_NORMAL = np.float32(2.0**-126)
#: the magnitudes of e2m1, and the midpoints between neighbours
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MIDDLES = (E2M1[1:] + E2M1[:-1]) / 2


def e4m3(x: Array) -> Array:
    """Bytes: nearest even, overflow saturates, NaN is 0x7F."""
    coded = np.clip(x, -448, 448).astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), coded)


def from_e4m3(codes: Array) -> Array:
    """Values of bytes, float32."""
    return codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)


def e2m1(x: Array) -> Array:
    """Codes 0..15, one per byte: nearest even, overflow saturates, the sign of a zero is kept; no NaN here."""
    size = np.abs(x)
    place = np.searchsorted(_MIDDLES, size, side="left")  # a tie goes down ...
    tie_to_odd = np.isin(size, _MIDDLES) & (place % 2 == 1)  # ... unless the lower code is odd
    return signed(place + tie_to_odd, x)


def signed(place: Array, x: Array) -> Array:
    """e2m1 codes of magnitude codes and the signs of x."""
    return (place + 8 * np.signbit(x)).astype(np.uint8)


def from_e2m1(codes: Array) -> Array:
    """Values of codes, float32."""
    return np.copysign(E2M1[codes & 7], np.where(codes & 8, -ONE, ONE))


def finite_amax(x: Array, axis: Any) -> Array:
    """The largest |x| over the finite elements, 0 where there are none; the axes stay with length 1."""
    return np.where(np.isfinite(x), np.abs(x), np.float32(0)).max(axis=axis, keepdims=True)


def pack(codes: Array) -> Array:
    """Two 4-bit codes per byte, the even one low."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def unpack(packed: Array) -> Array:
    """One 4-bit code per byte."""
    codes = np.empty((*packed.shape[:-1], 2 * packed.shape[-1]), np.uint8)
    codes[..., 0::2], codes[..., 1::2] = packed & 0xF, packed >> 4
    return codes


def steps_e4m3(x: Array, rounded: Any) -> Array:
    """Bytes by another rounding: |x| in steps of its binade, made whole by `rounded`, then saturated."""
    size = np.minimum(np.abs(x).astype(np.float64), 1000)
    exponent = np.floor(np.log2(np.maximum(size, 2.0**-6)))
    step = np.exp2(exponent - 3)
    value = np.where(np.isnan(x), np.nan, np.copysign(rounded(size / step) * step, x))
    return e4m3(value.astype(np.float32))


def via(x: Array, dtype: str) -> Array:
    """Rounded to a narrower float and back."""
    return x.astype(_NARROW[dtype]).astype(np.float32)


def flushed(x: Array) -> Array:
    """Subnormal float32 numbers as zeros, as fast-math makes them."""
    kept: Array = np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x)
    return kept.astype(np.float32)
