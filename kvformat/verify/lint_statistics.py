"""Which format and which swizzle explain codes and scales best, where nothing is known of what they were made of."""

from __future__ import annotations

from functools import cache
from math import erf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import ElementFormat, element

Array = NDArray[Any]

#: formats that a byte, or a nibble, may be a code of. The fnuz twins have the spread of the others.
_RIVALS = {8: ("e4m3fn", "e5m2", "int8"), 4: ("e2m1fn", "int4")}
#: how many times likelier per code, in nats, another format must make the codes, and how many codes it takes
_MARGIN = 0.1
_CODES = 1024
#: standard deviations tried, relative to a format's largest value
_SIZES = 2.0 ** -np.arange(0.5, 14, 0.5)


def better_format(codes: Array, name: str) -> str | None:
    """The format in which codes are spread much more like numbers around 0 than in the format `name`; None if none is.

    Each row of codes is taken for draws from a mixture of normal distributions whose widths lie a few binades apart, as
    K and V have channels of different size; the widest is fitted to the row.
    """
    fmt = element(name)
    rows = codes.view(np.uint8).reshape(-1, codes.shape[-1]) & np.uint8(fmt.codes - 1)
    if rows.size < _CODES:
        return None
    rows = rows[: 1 << 12]
    counts = np.zeros((len(rows), fmt.codes), np.float32)
    np.add.at(counts, (np.arange(len(rows))[:, None], rows), 1)
    own, *others = sorted(_RIVALS[fmt.bits], key=lambda each: each != name)
    if own != name:
        return None
    likelihood = {each: float((counts @ _log_masses(each).T).max(axis=1).sum()) / rows.size for each in (own, *others)}
    best = max(others, key=lambda each: likelihood[each])
    return best if likelihood[best] > likelihood[own] + _MARGIN else None


@cache
def _log_masses(name: str) -> NDArray[np.float32]:
    """The log of P(code), for each width: (widths, codes)."""
    fmt = element(name)
    # widths w, w / 2, w / 4, w / 8 in equal parts; one code in 10^4 is anything
    masses = [np.mean([_masses(fmt, float(size) * 2.0**-k) for k in range(4)], axis=0) for size in _SIZES]
    table: NDArray[np.float32] = np.log(0.9999 * np.array(masses) + 0.0001 / fmt.codes).astype(np.float32)
    return table


def _masses(fmt: ElementFormat, size: float) -> Array:
    """P(code) of a normal number, `size` times the largest value wide, rounded to nearest and saturated."""
    values = fmt.values().astype(np.float64) / fmt.max
    order = np.argsort(np.where(np.isfinite(values), values, np.inf), kind="stable")
    finite = order[np.isfinite(values[order])]
    borders = (values[finite][1:] + values[finite][:-1]) / 2
    below = np.array([0.0, *(0.5 * (1 + erf(border / size / sqrt(2))) for border in borders), 1.0])
    masses = np.zeros(fmt.codes)
    masses[finite] = np.diff(below)
    zeros = np.flatnonzero(values == 0)
    masses[zeros] = masses[zeros].mean()  # a zero of either sign
    return masses


def better_swizzle(scales: Array, *, swizzled: bool) -> str | None:
    """Whether block scales are alike in neighbouring tokens only if they are read in the other swizzle.

    scales: (blocks, slots, heads, columns), as read in the layout's own. A channel keeps its size from token to token,
    so the mean over tokens tells columns apart, in the right order; in the other one it mixes them.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log2(scales)
    # rows: what swizzles mix; columns without a finite logarithm say nothing
    logs = np.where(np.isfinite(logs), logs, 0)
    other = _swizzle(logs) if not swizzled else _unswizzle(logs)
    explained = [_between_columns(each) for each in (logs, other)]
    count, columns, heads = logs.shape[0] * logs.shape[1], logs.shape[3], logs.shape[2]
    rest = (float(((logs - logs.mean(axis=(0, 1))) ** 2).sum()), float(((other - other.mean(axis=(0, 1))) ** 2).sum()))
    noise = rest[1] / max(1, (count - 1) * columns * heads)
    degrees = (columns - 1) * heads
    gained = (explained[1] - explained[0]) / noise if noise > 0 else 0.0
    # the sum of so many squares of normal numbers, and eight standard deviations of it
    enough = degrees + 8 * sqrt(2 * degrees) + 20
    if count < 8 or gained <= enough:
        return None
    return "linear" if swizzled else "swizzled in groups of 4 tokens"


def _between_columns(logs: Array) -> float:
    means = logs.mean(axis=(0, 1))
    return float(((means - means.mean(axis=1, keepdims=True)) ** 2).sum() * logs.shape[0] * logs.shape[1])


def _swizzle(logs: Array) -> Array:
    """What lies where (t, s) goes: read as linear what was stored in groups of 4 tokens."""
    _, slots, _, columns = logs.shape
    t, s = np.arange(slots)[:, None], np.arange(columns)
    group = columns // 4
    return np.moveaxis(np.moveaxis(logs, 2, 1)[:, :, t // 4 * 4 + s // group, s % group * 4 + t % 4], 1, 2)


def _unswizzle(logs: Array) -> Array:
    """`_swizzle` undone: what was read as swizzled, read as linear."""
    _, slots, _, columns = logs.shape
    t, s = np.arange(slots)[:, None], np.arange(columns)
    group = columns // 4
    moved = np.empty_like(np.moveaxis(logs, 2, 1))
    moved[:, :, t // 4 * 4 + s // group, s % group * 4 + t % 4] = np.moveaxis(logs, 2, 1)
    return np.moveaxis(moved, 1, 2)
