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
#: how many tokens it takes to tell swizzles apart
_TOKENS = 64
#: standard deviations tried, relative to a format's largest value
_SIZES = 2.0 ** -np.arange(0.5, 14, 0.5)


class Spread:
    """In which format codes are spread much more like numbers around 0 than in their own.

    Each row of codes is taken for draws from a mixture of normal distributions whose widths lie a few binades apart, as
    K and V have channels of different size; the widest is fitted to the row.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        rivals = _RIVALS[element(name).bits]
        self._likelihood = dict.fromkeys(rivals, 0.0) if name in rivals else {}
        self._codes = 0

    def add(self, codes: Array) -> None:
        """Take in rows of codes (..., dims), one per byte."""
        count = element(self.name).codes
        rows = codes.view(np.uint8).reshape(-1, codes.shape[-1]) & np.uint8(count - 1)
        places = np.arange(len(rows))[:, None] * count + rows
        counts = np.bincount(places.reshape(-1), minlength=len(rows) * count).reshape(-1, count).astype(np.float32)
        self._codes += rows.size
        for each in self._likelihood:
            best = (counts @ _log_masses(each).T).max(axis=1)
            self._likelihood[each] += float(best.sum(dtype=np.float64))

    def better_format(self) -> str | None:
        """That format; None if there is none."""
        if self._codes < _CODES or not self._likelihood:
            return None
        best = max((each for each in self._likelihood if each != self.name), key=lambda each: self._likelihood[each])
        gained = (self._likelihood[best] - self._likelihood[self.name]) / self._codes
        return best if gained > _MARGIN else None


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


class Alike:
    """Whether block scales are alike in neighbouring tokens only if they are read in the other swizzle.

    A channel keeps its size from token to token, so the mean over tokens tells columns apart, in the right order; in
    the other one it mixes them.
    """

    def __init__(self, *, swizzled: bool) -> None:
        self._swizzled = swizzled
        self._count = 0
        self._squares = 0.0
        #: sums over tokens of the logarithms, as read in the layout's own swizzle and in the other one
        self._sums: list[Array] = [np.zeros(()), np.zeros(())]

    def add(self, scales: Array) -> None:
        """Take in scales (blocks, slots, heads, columns), as read in the layout's own swizzle."""
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log2(scales.astype(np.float64))
        # rows: what swizzles mix; scales without a finite logarithm say nothing
        logs = np.where(np.isfinite(logs), logs, 0)
        other = _unswizzle(logs) if self._swizzled else _swizzle(logs)
        self._count += logs.shape[0] * logs.shape[1]
        self._squares += float((logs**2).sum())
        self._sums = [total + each.sum(axis=(0, 1)) for total, each in zip(self._sums, (logs, other), strict=True)]

    def better_swizzle(self) -> str | None:
        """That swizzle, in words; None if theirs explains the scales as well."""
        # the noise of a few tokens is a poor guess: one right page of 16 tokens in about 1,000 looked swizzled
        if self._count < _TOKENS:
            return None
        own, other = (total / self._count for total in self._sums)
        heads, columns = other.shape
        rest = self._squares - self._count * float((other**2).sum())
        noise = rest / ((self._count - 1) * columns * heads) if rest > 1e-9 * self._squares else 0.0
        degrees = (columns - 1) * heads
        gained = self._count * (_between_columns(other) - _between_columns(own)) / noise if noise > 0 else 0.0
        # the sum of so many squares of normal numbers, and eight standard deviations of it
        enough = degrees + 8 * sqrt(2 * degrees) + 20
        if gained <= enough:
            return None
        return "linear" if self._swizzled else "swizzled in groups of 4 tokens"


def _between_columns(means: Array) -> float:
    """How far the columns of a head lie apart: means (heads, columns)."""
    return float(((means - means.mean(axis=1, keepdims=True)) ** 2).sum())


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
