"""The exact twin made fast, so that it can judge whole domains.

Encoding is a step function of |x| that can only step at a representable magnitude or at a midpoint between two. So the
twin is asked once at each of those points, once between each two neighbours, and once for Inf and NaN, and a binary
search gives the answer for any number of inputs. The points have few bits and are exact in float64, and so is x.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np

from kvformat.elements import exact
from kvformat.elements.formats import element


def critical_points(name):
    """0, every magnitude, every midpoint, and both once more beyond the largest finite value: ascending Fractions."""
    magnitudes = exact.magnitudes(element(name))
    midpoints = [(a + b) / 2 for a, b in pairwise(magnitudes)]
    return sorted({Fraction(0), *magnitudes, *midpoints})


@cache
def _table(name, overflow, rounding):
    points = critical_points(name)
    edges = np.array([float(point) for point in points])
    assert all(Fraction(edge) == point for edge, point in zip(edges.tolist(), points, strict=True))
    between = [(a + b) / 2 for a, b in pairwise(points)]
    # entry 2i is the answer at points[i], 2i + 1 the answer between points[i] and points[i + 1]
    sizes = [size for pair in zip(points, [*between, 2 * points[-1]], strict=True) for size in pair]
    policy = {"overflow": overflow, "rounding": rounding}
    codes = np.array(
        [
            [exact.encode(exact.Number(negative, size), name, **policy) for size in sizes]
            + [exact.encode(exact.infinity(negative), name, **policy)]
            for negative in (False, True)
        ],
        np.uint8,
    )
    return edges, codes, exact.encode(exact.NAN, name, **policy)


def encode(x, name, overflow="saturate", rounding="nearest_even"):
    """The twin's codes of an array, as `kvformat.encode` returns them."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        wide = np.asarray(x).astype(np.float64)
    edges, codes, nan_code = _table(name, overflow, rounding)
    magnitude = np.abs(wide)
    nan = np.isnan(wide)
    magnitude[nan] = 0
    below = np.searchsorted(edges, magnitude, side="right") - 1  # edges[0] is 0, so this is never negative
    place = 2 * below + (edges[below] != magnitude)
    place[np.isinf(wide)] = codes.shape[1] - 1
    found = np.where(nan, np.uint8(nan_code), codes[np.signbit(wide).astype(int), place])
    fmt = element(name)
    if fmt.kind != "integer":
        return found
    values = found.astype(np.int16)
    return np.where(values >= fmt.codes // 2, values - fmt.codes, values).astype(np.int8)
