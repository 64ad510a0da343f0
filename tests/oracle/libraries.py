"""What the tests against third-party quantizers share: finding them, what they are fed, and the comparison.

A library is run as it is; kvformat's answer must be the same bytes. There is no tolerance here, and no expected value
is kvformat's. NaN compares as a class: its sign depends on the vector width that torch was built for.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib import import_module, metadata
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import kvformat as kvf
from kvformat.recipes import exact
from kvformat.recipes.catalogue import recipe
from tests.oracle.inputs import BFLOAT16, turning_points

DTYPES = {"float32": np.dtype(np.float32), "bfloat16": BFLOAT16, "float16": np.dtype(np.float16)}

#: codes of a stored scale that mean NaN
_NAN_SCALES = {"e4m3fn": (0x7F, 0xFF), "e8m0fnu": (0xFF,)}

HEADS, HEAD_DIM = 2, 64
COUNT = 2_097_152


@cache
def _import(distribution: str, version: str, module: str) -> Any:
    found = metadata.version(distribution)
    if not found.startswith(version):
        raise metadata.PackageNotFoundError(f"{distribution} {version} (found: {found})")
    with warnings.catch_warnings():
        # importing them deprecates parts of torch and complains about each other's versions; how they compute does not
        warnings.simplefilter("ignore")
        return import_module(module)


def load(distribution: str, version: str, module: str) -> Any:
    """A module of a library. A person's run skips without it; where KVFORMAT_ORACLES=1 (CI), nothing may be missing."""
    try:
        return _import(distribution, version, module)
    except metadata.PackageNotFoundError as missing:
        reason = f"not installed: {missing.args[0]} (the extra 'oracles', after torch's CPU build)"
        if os.environ.get("KVFORMAT_ORACLES") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


# --- arrays and tensors --------------------------------------------------------------------------------------------


def tensor(x: NDArray) -> Any:
    """A torch tensor of its own with the bits of x."""
    import torch

    if x.dtype == BFLOAT16:
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(x.copy())


def rows(x: NDArray) -> Any:
    """x as a torch tensor (tokens * heads, head_dim)."""
    return tensor(np.ascontiguousarray(x).reshape(-1, x.shape[-1]))


def array(t: Any) -> NDArray:
    """The NumPy array of a tensor: float8 and e8m0 as their codes, bfloat16 and float16 widened to float32."""
    import torch

    if t.dtype.itemsize == 1:
        return t.view(torch.int8 if t.dtype == torch.int8 else torch.uint8).numpy()
    return t.to(torch.float32).numpy()


def nibbles(packed: Any) -> NDArray:
    """4-bit codes, low nibble first, one per byte."""
    data = array(packed)
    return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


# --- inputs --------------------------------------------------------------------------------------------------------


def adversarial(
    element: str, dtype: str, *, width: int, units: NDArray, tops: tuple[float, ...], seed: int = 0
) -> NDArray:
    """2,097,152 numbers (tokens, heads, head_dim) in groups of `width`, half of them where scales or codes turn.

    units: decode multipliers that scales can be, or lie between. A group has one, u: its largest element is one of
    `tops` times u, the others the element format's values and the midpoints between them times u, all within an ulp.
    Then: Gaussians of all sizes, random bits, zeros of both signs, subnormals, one huge outlier, Inf and NaN.
    """
    rng = np.random.default_rng(seed)
    groups = COUNT // width
    half, quarter, eighth = groups // 2, groups // 4, groups // 8
    parts = [
        _turning(rng, element, DTYPES[dtype], (half, width), units, tops),
        _cast(rng.standard_normal((quarter, width)) * np.exp2(rng.integers(-40, 40, (quarter, 1))), dtype),
        _random_bits(rng, DTYPES[dtype], (eighth, width)),
        _specials(rng, dtype, (groups - half - quarter - eighth, width)),
    ]
    x = np.concatenate(parts)[rng.permutation(groups)]
    return x.reshape(-1, HEADS, HEAD_DIM)


def tensors(dtype: str, *, seed: int = 1) -> list[NDArray]:
    """Whole tensors of a dtype, for scales that all elements share: of ten sizes, with an outlier, zeros, Inf, NaN."""
    rng = np.random.default_rng(seed)
    wide = (-140, -126, -60, -30, -3, 0, 7, 40, 90, 123)
    sizes = (-20, -14, -9, -3, 0, 1, 4, 7, 9, 11) if dtype == "float16" else wide
    x = [_cast(rng.standard_normal((64, HEADS, HEAD_DIM)) * 2.0**size, dtype) for size in sizes]
    spoiled = [x[4].copy() for _ in range(4)]
    for each, value in zip(spoiled, (3e4, np.inf, -np.inf, np.nan), strict=True):
        each[7, 1, 5] = value
    return [*x, *spoiled, np.zeros_like(x[0])]


def finite(arrays: list[NDArray]) -> list[NDArray]:
    """Those whose amax is a number and not 0, as a scale that is given must be; their scale does not underflow."""
    return [x for x in arrays if 2.0**-100 < np.abs(x.astype(np.float64)).max() < np.inf]


def _cast(x: NDArray, dtype: str) -> NDArray:
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(np.float32).astype(DTYPES[dtype])


def _nudged(rng: np.random.Generator, x: NDArray, most: int) -> NDArray:
    """x, each up to `most` ulp of its type away from where it was."""
    bits = x.view(f"i{x.dtype.itemsize}")
    return (bits + rng.integers(-most, most + 1, x.shape).astype(bits.dtype)).view(x.dtype)


def _turning(
    rng: np.random.Generator,
    element: str,
    dtype: np.dtype,
    shape: tuple[int, int],
    units: NDArray,
    tops: tuple[float, ...],
) -> NDArray:
    unit = rng.choice(units, (shape[0], 1))
    top = rng.choice(np.array(tops), (shape[0], 1))
    points = element_points(element)
    factors = rng.choice(np.concatenate([points[points <= np.max(tops)], -points]), shape)
    factors = np.where(np.abs(factors) > top, factors / 8, factors)
    with np.errstate(over="ignore", under="ignore"):
        x = _nudged(rng, (factors * unit).astype(np.float32).astype(dtype), 1)
        first = (top * unit).astype(np.float32).astype(dtype)
    # a logarithm in binary32 forgets up to 22 ulp next to 2^100; every fourth group looks there
    far = rng.random(shape[0])[:, None] < 0.25
    x[np.arange(shape[0]), rng.integers(0, shape[1], shape[0])] = np.where(
        far, _nudged(rng, first, 30), _nudged(rng, first, 1)
    )[:, 0]
    return x


def element_points(element: str) -> NDArray[np.float64]:
    """Magnitudes of the codes and midpoints between them."""
    return np.arange(0, 128.5, 0.5) if element == "int8" else turning_points(element)


def _random_bits(rng: np.random.Generator, dtype: np.dtype, shape: tuple[int, int]) -> NDArray:
    unsigned = np.dtype(f"u{dtype.itemsize}")
    bits = rng.integers(0, np.iinfo(unsigned).max, shape, unsigned, endpoint=True)
    return bits.view(dtype)


def _specials(rng: np.random.Generator, dtype: str, shape: tuple[int, int]) -> NDArray:
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 20, (shape[0], 1)))
    tiny = float(ml_dtypes.finfo(DTYPES[dtype]).smallest_subnormal)
    first = {
        0: lambda n: np.zeros((n, shape[1])),
        1: lambda n: np.full((n, shape[1]), -0.0),
        2: lambda n: np.copysign(0.0, rng.standard_normal((n, shape[1]))),
        3: lambda n: tiny * rng.integers(-100, 100, (n, shape[1])),
        4: lambda n: tiny * rng.integers(-1, 2, (n, shape[1])),
    }
    kind = rng.integers(0, 10, shape[0])
    for which, make in first.items():
        x[kind == which] = make(np.count_nonzero(kind == which))
    place = rng.integers(0, shape[1], shape[0])
    sign = rng.choice([-1.0, 1.0], shape[0])
    huge = np.exp2(rng.uniform(8, 15 if dtype == "float16" else 127, shape[0]))
    for which, value in ((5, sign * huge), (6, sign * huge), (7, sign * np.inf), (8, sign * np.nan), (9, sign * 0)):
        x[np.flatnonzero(kind == which), place[kind == which]] = value[kind == which]
    return _cast(x, dtype)


# --- comparison ----------------------------------------------------------------------------------------------------


def assert_same(
    x: NDArray,
    name: str,
    *,
    codes: NDArray,
    scales: NDArray,
    scale: float | None = None,
    global_scale: float | None = None,
) -> None:
    """kvformat's scales and codes of x are those. Codes under a scale that is NaN all mean NaN, and are not compared.

    scale: the per-tensor scale that was given; global_scale: the one that the library found.
    """
    found = kvf.quantize(x, name, scale=scale)
    scales = scales.reshape(found.scales.shape)
    codes = codes.reshape(found.codes.shape)
    assert scales.dtype == found.scales.dtype
    assert codes.dtype == found.codes.dtype
    if global_scale is not None:
        assert found.global_scale.view(np.uint32) == np.float32(global_scale).view(np.uint32)
    nan = _is_nan(scales, found)
    np.testing.assert_array_equal(_is_nan(found.scales, found), nan)
    _assert_none(((found.scales != scales) & ~nan), "scales", found.scales, scales)
    under = np.broadcast_to(_over_codes(nan, codes.shape), codes.shape)
    wrong = (found.codes != codes) & ~under
    if found.recipe.element == "e2m1fn":  # NaN is stored as a zero, and the zero's sign is whatever NaN's was
        zeros = (codes & 7 == 0) & (found.codes & 7 == 0)
        wrong &= ~(zeros & ~np.isfinite(x.astype(np.float32)))
    if found.recipe.element == "e4m3fn":
        wrong &= ~(np.isin(codes, (0x7F, 0xFF)) & np.isin(found.codes, (0x7F, 0xFF)))
    _assert_none(wrong, "codes", found.codes, codes, x, np.broadcast_to(_over_codes(scales, codes.shape), codes.shape))


def assert_told_apart(
    x: NDArray, neighbour: str, *, codes: NDArray, scales: NDArray, scale: float | None = None
) -> None:
    """The nearest neighbour of the recipe does not store these codes and scales, which are the library's."""
    # the slow twin: a compiled kernel of every neighbour would take as long as all else in here
    other_codes, other_scales, _ = exact.quantize(x, recipe(neighbour), scale)
    assert codes.tobytes() != other_codes.tobytes() or scales.tobytes() != other_scales.tobytes()


def head(elements: list[float], width: int, dtype: str = "float32") -> NDArray:
    """One row (1, 1, width) that begins with these elements; the others are 0."""
    return _cast(np.array([[elements + [0.0] * (width - len(elements))]]), dtype)


def stored(codes: NDArray, count: int, *, bits: int = 8) -> str:
    """The first `count` codes in hexadecimal: bytes with spaces between, or one digit each."""
    first = codes.reshape(-1)[:count].view(np.uint8)
    return first.tobytes().hex(" ") if bits == 8 else "".join(f"{code:x}" for code in first)


def _is_nan(scales: NDArray, found: kvf.Quantized) -> NDArray[np.bool_]:
    level = found.recipe.levels[-1]
    if level.format.is_float:
        return np.isnan(scales)
    return np.isin(scales, _NAN_SCALES[level.format.name])


def _over_codes(scales: NDArray, shape: tuple[int, ...]) -> NDArray:
    """Scales repeated over the codes that they cover."""
    if scales.ndim == 3:
        return np.repeat(scales, shape[2] // scales.shape[2], axis=2)
    return scales[..., None] if scales.ndim == 2 else scales.reshape(1, 1, 1)


def _assert_none(wrong: NDArray, what: str, found: NDArray, expected: NDArray, *context: NDArray) -> None:
    if not wrong.any():
        return
    lines = [
        f"  {tuple(int(i) for i in at)}: found {found[tuple(at)]}, the library has {expected[tuple(at)]}"
        + "".join(f", {each[tuple(at)]!r}" for each in context)
        for at in np.argwhere(wrong)[:10]
    ]
    pytest.fail("\n".join([f"{np.count_nonzero(wrong)} of {wrong.size} {what} differ", *lines]), pytrace=False)
