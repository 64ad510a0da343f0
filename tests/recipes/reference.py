"""The golden recipes once more, in plain NumPy float32 arithmetic and ml_dtypes casts, from the pages in spec/recipes.

NumPy rounds each float32 operation once, to nearest even, and flushes nothing; ml_dtypes rounds a float32 once.
Nothing here is shared with the code under test.
"""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np

F = np.float32


class Golden(NamedTuple):
    codes: np.ndarray
    scales: np.ndarray
    global_scale: np.float32


def quantize(x, mode, scale=None):
    """What `kvformat.quantize(x, mode, scale=scale)` must return."""
    with np.errstate(all="ignore"):
        wide = x.astype(F)
        given = None if scale is None else F(scale)
        return {
            "fp8_per_tensor": _fp8_per_tensor,
            "fp8_per_token_head": _fp8_per_token_head,
            "int8_per_token_head": _int8_per_token_head,
            "nvfp4": _nvfp4,
        }[mode](wide, given)


def _amax(x, axis):
    return np.where(np.isfinite(x), np.abs(x), F(0)).max(axis=axis)


def _never_zero(scale):
    return np.where(scale == 0, F(1), scale).astype(F)


def e4m3fn(q):
    """Saturating codes; a NaN is 0x7F."""
    codes = np.clip(q, F(-448), F(448)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(q), np.uint8(0x7F), codes)


def e4m3fn_values(codes):
    """float32 values of codes."""
    return codes.view(ml_dtypes.float8_e4m3fn).astype(F)


def _fp8_per_tensor(x, given):
    s = _never_zero(_amax(x, None) / F(448)) if given is None else given
    return Golden(e4m3fn(x / s), np.full(1, s, F), F(1))


def _fp8_per_token_head(x, given):
    assert given is None
    s = _never_zero(_amax(x, 2) / F(448))
    return Golden(e4m3fn(x / s[..., None]), s, F(1))


def _int8_per_token_head(x, given):
    assert given is None
    s = _never_zero(_amax(x, 2) / F(127))
    spoiled = np.isnan(x).any(axis=2)
    q = np.clip(np.rint(x / s[..., None]), F(-127), F(127))
    codes = np.where(spoiled[..., None], F(0), q).astype(np.int8)
    return Golden(codes, np.where(spoiled, F(np.nan), s), F(1))


def _nvfp4(x, given):
    g = _never_zero(_amax(x, None) / F(2688)) if given is None else given
    blocks = x.reshape(*x.shape[:2], -1, 16)
    spoiled = np.isnan(blocks).any(axis=3)
    bs = np.where(spoiled, np.uint8(0x7F), e4m3fn(_amax(blocks, 3) / F(F(6) * g)))
    d = (e4m3fn_values(bs) * g)[..., None]
    q = np.clip(blocks / d, F(-6), F(6))
    q = np.where(d == 0, np.copysign(F(0), blocks), q)
    q = np.where(spoiled[..., None], F(0), q).astype(F)
    codes = q.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return Golden(codes.reshape(x.shape), bs, F(g))


def dequantize(q, mode):
    """float32 values, in the order of the table: code value * s, or (e2m1 value * bs) * g."""
    with np.errstate(all="ignore"):
        if mode == "int8_per_token_head":
            return q.codes.astype(F) * q.scales[..., None]
        if mode == "fp8_per_token_head":
            return e4m3fn_values(q.codes) * q.scales[..., None]
        if mode == "fp8_per_tensor":
            return e4m3fn_values(q.codes) * q.scales[0]
        e = q.codes.view(ml_dtypes.float4_e2m1fn).astype(F)
        return (e * np.repeat(e4m3fn_values(q.scales), 16, axis=2)) * q.global_scale
