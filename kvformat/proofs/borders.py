"""Two monotone recipes with a given scale: the scales at which a code changes, by bisection, and what lies between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.proofs.found import Found, Pair
from kvformat.recipes.quantizer import quantize

if TYPE_CHECKING:
    from kvformat.proofs.domains import Domain, Stretch
    from kvformat.recipes.program import Recipe

Array = NDArray[Any]

#: stretches of differing scales of one x that are listed; all of them are counted
_LISTED = 1 << 12
_ONE = 0x3F800000


def between_borders(task: Stretch, domain: Domain) -> Found:
    """All scales of the domain, for significands start .. stop - 1 of x and both signs.

    A pair that is listed is the first scale of a stretch on which the codes differ, and where the stretch goes beyond a
    power of two that power; x and the scale are moved by one power of two, so that the scale lies in [1, 2).
    """
    from kvformat.proofs.domains import exponents, significands

    inside = exponents(domain)
    # x in [1, 2) and scales 2^-e are the ratios of scales in [1, 2) and x times 2^e
    first, number = _ONE - (inside[-1] << 23), len(inside) << 23
    sizes = significands(task.dtype)[task.start : task.stop]
    x = np.concatenate([sizes, -sizes])
    borders = [_borders(each, x, first, number) for each in (domain.left, domain.right)]
    different = 0
    pairs: list[Pair] = []
    for place, value in enumerate(x):
        edges = np.unique(np.concatenate([[0, number], borders[0][place], borders[1][place]]))
        starts, ends = edges[:-1], edges[1:]
        codes = [_codes(each, np.full(len(starts), value), first + starts) for each in (domain.left, domain.right)]
        apart = np.flatnonzero(codes[0] != codes[1])
        different += int((ends - starts)[apart].sum())
        pairs += [
            _pair(value, first + int(starts[at]), first + int(ends[at]), int(codes[0][at]), int(codes[1][at]))
            for at in apart[: _LISTED - len(pairs)]
        ]
    return Found(len(x) * number, 0, different, 0, tuple(pairs))


def _pair(x: np.float32, start: int, end: int, left: int, right: int) -> Pair:
    power = -(-start >> 23) << 23  # the first power of two that is not before the start
    bits = power if power < end else start
    exponent = (bits >> 23) - 127
    scale = float(np.uint32(bits).view(np.float32)) * 2.0**-exponent
    return Pair("code", scale, float(x) * 2.0**-exponent, left, right, None)


def _borders(recipe: Recipe, x: Array, first: int, number: int) -> NDArray[np.int64]:
    """Of each x, for each magnitude of a code, at how many scales, the smallest on, the code has at least that one."""
    order = _order(str(recipe.element))
    wanted = np.broadcast_to(np.arange(1, order.max() + 1), (len(x), order.max()))
    low = np.zeros(wanted.shape, np.int64)  # below it the code is large enough
    high = np.full(wanted.shape, number, np.int64)  # from it on it is not
    values = np.repeat(x, wanted.shape[1])
    while (low < high).any():
        middle = (low + high) // 2
        large = order[_codes(recipe, values, first + middle.reshape(-1))].reshape(wanted.shape) >= wanted
        large &= low < high
        smaller = ~large & (low < high)
        low[large] = middle[large] + 1
        high[smaller] = middle[smaller]
    return low


def _order(name: str) -> NDArray[np.int64]:
    """Of each code the rank of its magnitude; a NaN is beyond all."""
    with np.errstate(invalid="ignore"):
        sizes = np.abs(element(name).values().astype(np.float64))
    ranks = np.unique(sizes[np.isfinite(sizes)])
    return np.where(np.isfinite(sizes), np.searchsorted(ranks, np.nan_to_num(sizes)), len(ranks)).astype(np.int64)


def _codes(recipe: Recipe, x: Array, bits: Array) -> NDArray[np.uint8]:
    """The codes of x beside scales given by their bits: a row each, which carries its scale."""
    from kvformat.proofs.domains import LIFT

    rows = np.empty((len(x), 1, 2), np.float32)
    rows[:, 0, 0] = bits.astype(np.uint32).view(np.float32) * np.float32(2.0**LIFT)
    rows[:, 0, 1] = x
    codes: NDArray[np.uint8] = quantize(rows, recipe).codes[:, 0, 1].view(np.uint8)
    return codes & np.uint8(element(str(recipe.element)).codes - 1)
