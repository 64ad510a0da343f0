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
#: codes that are not zero, from which on a spread says anything
_CODES = 1024
#: entropy in nats that codes must have to be spread at all; normal numbers have 2.3 in e2m1fn, more in 8 bits
_VARIED = 1.5
#: nats per code that the best mixture of another format may miss the codes by, and by how much more the own one must
_FITS, _MARGIN = 0.15, 0.2
#: how many tokens it takes to tell swizzles apart
_TOKENS = 64
#: standard deviations that are mixed, relative to a format's largest value
_SIZES = 2.0 ** -np.arange(-1, 20, 0.5)
_STEPS = 100


def has_rivals(name: str) -> bool:
    """Whether codes of this format can be told from those of others."""
    return bool(name) and name in _RIVALS.get(element(name).bits, ())


class Spread:
    """Whether codes are spread like numbers around 0 in another format, and in their own like no such numbers.

    Numbers of all sizes are mixtures of normal distributions of different widths: with channels, heads and tokens of
    different size, log-uniform ones too. Each format's best mixture is fitted to all codes that are not zero in their
    own format, so that zeros, of which right pages may be full, say nothing. Constants and other numbers that no
    mixture explains in any format say nothing either.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts = np.zeros(element(name).codes, np.int64)

    def add(self, codes: Array) -> None:
        """Take in codes of any shape, one per byte."""
        patterns = codes.reshape(-1).view(np.uint8) & np.uint8(len(self._counts) - 1)
        self._counts += np.bincount(patterns, minlength=len(self._counts))

    def better_format(self) -> str | None:
        """That format; None if there is none."""
        fmt = element(self.name)
        kept = fmt.values() != 0
        counts = self._counts[kept]
        total = int(counts.sum())
        if total < _CODES or _entropy(counts / total) < _VARIED:
            return None
        missed = {each: _missed(counts / total, _masses_of(each)[:, kept]) for each in _RIVALS[fmt.bits]}
        best = min((each for each in missed if each != self.name), key=lambda each: missed[each])
        # what is counted lies off any law by so much by chance
        chance = len(counts) / (2 * total)
        return best if missed[best] < _FITS + chance and missed[self.name] > missed[best] + _MARGIN else None


def _entropy(shares: Array) -> float:
    """In nats."""
    seen = shares[shares > 0]
    return -float((seen * np.log(seen)).sum())


def _missed(shares: Array, masses: Array) -> float:
    """How far the shares (codes) are from the best mixture of masses (widths, codes): Kullback-Leibler, in nats."""
    masses = masses / masses.sum(axis=1, keepdims=True)
    weights = np.full(len(masses), 1 / len(masses))
    for _ in range(_STEPS):  # expectation, maximisation
        weights = weights * (masses @ (shares / (weights @ masses)))
    mixed, seen = weights @ masses, shares > 0
    return float((shares[seen] * np.log(shares[seen] / mixed[seen])).sum())


@cache
def _masses_of(name: str) -> Array:
    """P(code) for each width: (widths, codes). One code in 10^4 is anything."""
    fmt = element(name)
    return np.array([0.9999 * _masses(fmt, float(size)) + 0.0001 / fmt.codes for size in _SIZES])


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
        # the scales of a token may all be alike, and a swizzle deals them to four rows: a quarter is independent
        independent = self._count / 4
        gained = independent * (_between_columns(other) - _between_columns(own)) / noise if noise > 0 else 0.0
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
