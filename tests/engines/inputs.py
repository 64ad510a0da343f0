"""What engines are fed: rows where scales, ties, zeros, Inf and NaN decide, every 16-bit pattern, scales."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.oracle.inputs import all_bfloat16, all_float16, boundary_float32, is_nan, random_float32
from tests.oracle.libraries import DTYPES, adversarial

#: scales that are given: one, an ordinary one, a bfloat16 one, subnormal, tiny, huge
SCALES = tuple(map(np.float32, (1.0, 0.037, 0.05078125, 2.0**-130, 1e-30, 1e30)))
#: multipliers that the amax of a group can make, and where vendors' floors lie
UNITS = np.concatenate([np.exp2(np.random.default_rng(5).uniform(-40, 60, 55)), [1e-6, 0.99e-6, 1e-4, 1e-10, 1.0]])


def words(x: NDArray) -> str:
    """The dtype and shape, as logs say them."""
    return f"{x.dtype.name} {'x'.join(map(str, x.shape))}"


@cache
def patterns(dtype: str, heads: int, dims: int) -> NDArray:
    """Every 16-bit pattern; of float32 the neighbourhood of every e4m3fn and e5m2 code, and random bits."""
    if dtype == "float32":
        x = np.concatenate([boundary_float32("e4m3fn"), boundary_float32("e5m2"), random_float32(60_000)])
    else:
        x = all_bfloat16() if dtype == "bfloat16" else all_float16()
    rows = -(-x.size // (heads * dims))
    return np.resize(x, rows * heads * dims).reshape(rows, heads, dims)


def special_rows(dtype: str, width: int) -> NDArray:
    """Groups (n, width), one of each kind of trouble; they come first, so that committed vectors hold them."""
    info = ml_dtypes.finfo(DTYPES[dtype])
    tiny, least, most = float(info.smallest_subnormal), float(info.smallest_normal), float(info.max)
    ramp = (np.arange(width) % 16 - 7.5) / 8
    some = np.resize([1.5, -2.25, 0.0, -0.0, 6.0, 0.3125, -448.0, 57.0], width)

    def with_first(value: float, rest: NDArray) -> NDArray:
        return np.concatenate([[value], rest[1:]])

    rows = [
        np.zeros(width), np.full(width, -0.0), np.full(width, np.nan), np.full(width, -np.nan), np.full(width, np.inf),
        some, ramp, with_first(np.nan, some), with_first(np.inf, some), with_first(-np.inf, ramp),
        np.resize([np.inf, np.nan], width), np.resize([tiny, -tiny, 3 * tiny, 0.0], width),
        np.resize([least, -least / 2, 0.0, least * 1.5], width), with_first(most, some), with_first(-most, ramp),
        with_first(tiny, np.zeros(width)), 1e-3 * ramp, with_first(1e-4, np.zeros(width)), 1e-6 * some,
    ]  # fmt: skip
    with np.errstate(over="ignore", under="ignore"):
        return np.stack(rows).astype(np.float32).astype(DTYPES[dtype])


@cache
def hard(element: str, dtype: str, width: int, tops: tuple[float, ...], groups: int, seed: int = 0) -> NDArray:
    """Groups (n, width): the special ones, then those of `tests.oracle.libraries.adversarial`, n about `groups`."""
    many = adversarial(element, dtype, width=width, units=UNITS, tops=tops, seed=seed)
    return np.concatenate([special_rows(dtype, width), many.reshape(-1, width)[:groups]])


def shaped(groups: NDArray, heads: int, dims: int) -> NDArray:
    """Groups as (tokens, heads, dims), repeated from the start until the last token is full."""
    tokens = -(-groups.size // (heads * dims))
    return np.resize(groups, (tokens, heads, dims))


def numbers(x: NDArray) -> NDArray:
    """x with 1 in the place of NaN."""
    return np.where(is_nan(x), x.dtype.type(1), x)
