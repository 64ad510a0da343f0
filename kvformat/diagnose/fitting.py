"""A per-tensor scale by which every code found may have arisen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element


def fit(x: NDArray[Any], codes: NDArray[np.uint8], fmt: str) -> np.float32 | None:
    """A decode scale that explains the codes of 8 bits of x, of the same shape; None if there is none.

    A code c is what x / s rounds to if s lies between x / (c + half a step) and x / (c - half a step).
    """
    values = element(fmt).values()
    value = values[codes].astype(np.float64)
    keep = np.isfinite(value) & (value != 0) & np.isfinite(x) & (x != 0)
    keep &= np.abs(value) < values[np.isfinite(values)].max()
    if not keep.any():
        return None
    steps = np.unique(np.abs(values[np.isfinite(values)].astype(np.float64)))
    place = np.searchsorted(steps, np.abs(value[keep]))
    below, above = ((steps[place] + steps[place + step]) / 2 for step in (-1, 1))
    size = np.abs(x[keep].astype(np.float64))
    low, high = float((size / above).max()), float((size / below).min())
    return _roundest(low, high) if low <= high else None


def _roundest(low: float, high: float) -> np.float32:
    """The number between two with the fewest mantissa bits: a scale that somebody wrote down is short."""
    middle = (low + high) / 2
    for bits in range(24):
        unit = 2.0 ** (np.floor(np.log2(middle)) - bits)
        short = np.round(middle / unit) * unit
        if low < short < high:
            return np.float32(short)
    return np.float32(middle)
