"""Inputs at the borders of a recipe: it is asked where its codes and scales change, and K and V are put there.

Random data does not get there: x / s and x * (1 / s) agree on 504,000 random values and differ on 294 of 6,174 beside a
border. A code is chosen, and the input where the recipe goes over to the next one is found by bisection over the bit
patterns of the input's dtype, with the scale that the row then has. Nothing is known here of any candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.fuzz import reading
from kvformat.fuzz.strategies import cast
from kvformat.recipes import plain
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized

Array = NDArray[Any]
Generator = np.random.Generator

#: steps from the first input of the upper code, in units in the last place: two below the border are as important as
#: the ones at it, since a second rounding moves what lies just above a tie onto it
_STEPS = np.array([-2, -1, -1, 0, 0, 1])
#: the smallest rows are tried first, so that what fails is small from the beginning
_HEADS = (1, 1, 2, 1, 1, 4, 1, 1, 2, 1, 1, 8, 1)
_TOKENS = (1, 1, 2, 1, 4, 2, 8, 1, 16, 4, 32, 64)

#: how far, in units in the last place, a border is sought from the middle between two codes
_NEAR = 4

_INF, _NAN = np.inf, np.nan
_TINY = 2.0**-149
#: rows of 16 or fewer numbers, zeros behind them: what each recipe needs a rule for
_SPECIAL: tuple[tuple[float, ...], ...] = (
    (0.0,),
    (1.0,),
    (-0.0, 1.0),
    (1.0, -0.0, -1e-30),
    (-1.0,),
    (_NAN, 1.0),
    (1.0, 0.5, _NAN),
    (_INF, 1.0),
    (1.0, -_INF),
    (_NAN, _INF, 1.0),
    (_NAN,) * 16,
    (_INF,) * 16,
    (-0.0,) * 16,
    (_TINY,),
    (3 * _TINY, -_TINY),
    (1e-40, -1e-40, 3e-41),
    (2.0**-126, 2.0**-127),
    (1e-9, 3e-10),
    (1e-6, -1e-6, 3e-7),
    (1e-4, 3e-5),
    (3.0e38, 1.0),
    (-3.3e38, 3.3e38),
    (1e30, 1.0, 1e-30),
    (0.005859375, 0.004, -0.0029296875),  # 6 * 2^-10: an nvfp4 block scale between 0 and its smallest value
    (127.0, 0.6, -0.6, 1.5, -1.5, 2.5),
    (448.0, 464.0, 465.0, 500.0, 1000.0, -1000.0),
    (6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -5.0),
    (448.0, 256.0, 17.0, 1.0625, 2.0**-10, 3.0 * 2.0**-10, 2.0**-6, 7.5 * 2.0**-9),
    (1.0, 2.0, 3.0, 4.0, -5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, -14.0, 15.0, 16.0),
)


def special_rows(dtype: Any) -> Iterator[Array]:
    """Small tensors of zeros, infinities, NaN and extremes: alone, and beside another block, head or token."""
    for first in _SPECIAL:
        alone = np.zeros((1, 1, 16), np.float32)
        alone[0, 0, : len(first)] = first
        yield cast(alone, dtype)
    ordinary = np.linspace(-3, 2.5, 16, dtype=np.float32)
    for first in ((0.0,), (_NAN,), (_INF, 1.0), (100.0, 3.0), (1e-7,)):
        row = np.zeros(16, np.float32)
        row[: len(first)] = first
        for axis in (2, 1, 0):
            shapes = [each.reshape(1, 1, 16) for each in (row, ordinary)]
            yield cast(np.concatenate(shapes, axis=axis), dtype)
            yield cast(np.concatenate(shapes[::-1], axis=axis), dtype)


class Borders:
    """Makes tensors whose elements lie beside the borders of a recipe's codes, and whose scales lie beside theirs."""

    def __init__(self, recipe: Recipe, generator: Generator) -> None:
        self.recipe = recipe
        self.generator = generator
        kinds = [level.multiplier for level in recipe.outer if level.may_be_given]
        #: what a given scale is to the decode multiplier: itself, its inverse, or about 2688 of it (nvfp4's amax)
        self._sense = -1 if kinds == ["encode"] else 1
        self._factor = 2688.0 if kinds == ["amax"] else 1.0
        #: whether the recipe's borders are near the middle between codes; None: not known yet
        self._midpoints: bool | None = None

    @np.errstate(all="ignore")
    def tensor(self, shape: tuple[int, int, int], dtype: np.dtype[Any], scale: float | None = None) -> Array:
        """K or V (tokens, heads, head_dim). scale: the per-tensor scale that it will be quantized with."""
        tokens, heads, dims = shape
        width = (self.recipe.inner.granularity.dims if self.recipe.inner else 0) or dims
        groups = tokens * heads * dims // width
        tops = self._tops(groups, dtype, scale)
        x = np.zeros((groups, width), dtype)
        place = self.generator.integers(0, width, groups)
        x[np.arange(groups), place] = tops
        whole = x.reshape(shape)
        if self.recipe.element is None:
            return cast(self.generator.standard_normal(shape) * tops.astype(np.float32).max(), dtype)
        coded = self.recipe.inner is not None and not self.recipe.inner.format.is_float
        # 30 steps of bisection take as long for one border as for a hundred: it pays for large tensors
        if coded and self.generator.random() < (0.1 if groups < 16 else 0.8):
            x = self._scale_borders(x, shape, place, scale)
            whole = x.reshape(shape)
        found = self._code_borders(whole, tops_of(x, shape, self.recipe), scale)
        empty = self.generator.random(shape) < self.generator.choice([0.0, 0.3, 0.8])
        filled = np.where((whole == 0) & ~empty, found, whole)
        return self._signed(filled)

    def given_scale(self) -> float:
        """A per-tensor scale as the recipe's callers give one: mostly no power of two, now and then extreme."""
        kind = self.generator.integers(0, 10)
        if kind == 0:
            scale = 2.0 ** self.generator.integers(-20, 20)
        elif kind == 1:
            scale = self.generator.integers(1, 3000) * _TINY
        elif kind == 2:
            scale = self.generator.uniform(1, 1.9) * 2.0 ** self.generator.integers(-120, 120)
        else:
            scale = self.generator.uniform(1, 2) * 2.0 ** self.generator.integers(-12, 4)
        with np.errstate(over="ignore"):
            given = np.float32(scale**self._sense * self._factor)
        return float(given) if np.isfinite(given) and given > 0 else 1.0

    def _tops(self, groups: int, dtype: np.dtype[Any], scale: float | None) -> Array:
        """The largest element of each group: of any size, at powers of two and beside, and with exact scales."""
        generator = self.generator
        fmt = element(self.recipe.element) if self.recipe.element else element("e4m3fn")
        kind = generator.integers(0, 6)
        exponent: Array = generator.integers(-8, 9, groups).astype(np.float64)
        mantissa: Array = generator.uniform(1, 2, groups)
        if kind == 0:
            exponent = generator.integers(-140, 120, groups)
        elif kind == 1:
            mantissa = np.ones(groups)
        elif kind == 2:
            mantissa, exponent = np.full(groups, fmt.max), np.repeat(exponent[:1], groups)
        tops = mantissa * 2.0**exponent
        if self.recipe.outer and self.recipe.inner and kind in (2, 3):
            tops = self._exact_blocks(groups, exponent[0])
        if scale is not None:
            scale = (scale / self._factor) ** self._sense  # the decode multiplier
            reach = fmt.max * (448 if self.recipe.inner else 1) * generator.choice([1, 1, 0.01, 1.04, 1.5])
            tops = (generator.uniform(0.001, 1, groups) if kind != 1 else 1) * reach * scale
        with np.errstate(over="ignore"):
            rounded = np.asarray(tops, np.float64).astype(np.float32).astype(dtype)
        rounded = np.where(np.isfinite(rounded), rounded, np.ones((), dtype)).astype(dtype)
        if kind == 1:
            rounded = stepped(rounded, generator.integers(-1, 2, groups))
        quiet = generator.random(groups) < 0.1
        return np.where(quiet & (np.arange(groups) > 0), np.zeros((), dtype), rounded)

    def _exact_blocks(self, groups: int, exponent: float) -> Array:
        """Tops whose tensor scale is a power of two and whose block scales are exact."""
        inner = self.recipe.inner
        assert inner is not None
        assert self.recipe.element is not None
        stored = inner.format.element
        if stored is None:
            return np.full(groups, 2.0**exponent)
        kept = stored.values()[(stored.values() > 0) & np.isfinite(stored.values())].astype(np.float64)
        chosen = self.generator.choice(kept, groups)
        chosen[0] = kept.max()
        tops: Array = chosen * element(self.recipe.element).max * 2.0**exponent
        return tops

    def _scale_borders(self, x: Array, shape: tuple[int, int, int], place: Array, scale: float | None) -> Array:
        """Most groups get the largest element at which their stored scale goes over to the next one."""
        rows = np.arange(len(x))
        tops = np.abs(x[rows, place])
        moved = self.generator.random(len(x)) < 0.8
        moved &= rows != np.argmax(tops)  # it makes the tensor's own scale, which must not move meanwhile
        if not moved.any():
            return x
        ceiling = np.full(len(x), tops.max())
        store = self.recipe.inner.format.element if self.recipe.inner else None
        codes = np.zeros(1) if store is None else store.values()

        def scales(trial: Array) -> Array:
            changed = x.copy()
            changed[rows[moved], place[moved]] = trial[moved]
            stored = self._quantize(changed.reshape(shape), scale).scales.reshape(-1)
            values: Array = codes[stored]
            return values

        border = self._bisect(scales, scales(tops), np.zeros_like(ceiling), ceiling)
        chosen = stepped(border, self.generator.choice(_STEPS, len(x)))
        # where the largest of all is the tensor's own, it stays
        usable = moved & (np.abs(chosen) <= tops.max())
        changed = x.copy()
        changed[rows[usable], place[usable]] = chosen[usable]
        return changed

    def _code_borders(self, x: Array, tops: Array, scale: float | None) -> Array:
        """For each element an input beside the border above a code of its own choice, no larger than `tops`."""
        assert self.recipe.element is not None
        fmt = element(self.recipe.element)
        values = fmt.values()
        upward = np.unique(values[np.isfinite(values) & (values >= 0)])
        # half of them near the top, where most elements of a row lie
        last = len(upward) - 1
        place = self.generator.integers(0, last, x.shape)
        near = last - 1 - self.generator.integers(0, min(8, last), x.shape)
        chosen_place = np.where(self.generator.random(x.shape) < 0.5, place, near)
        wanted = upward[chosen_place]
        free = x == 0
        ceiling = np.broadcast_to(tops, x.shape).astype(x.dtype)

        def codes(trial: Array) -> Array:
            changed = np.where(free, trial, x)
            found: Array = values[self._quantize(changed, scale).codes.view(np.uint8) & np.uint8(fmt.codes - 1)]
            return found

        middle = ((wanted.astype(np.float64) + upward[chosen_place + 1]) / 2).astype(np.float32)
        guess = np.abs(cast(reading.scaled(self._quantize(x, scale), middle), x.dtype))
        guess = np.where(guess <= ceiling, guess, ceiling)
        low, high = stepped(guess, np.array(-_NEAR)), np.minimum(stepped(guess, np.array(_NEAR)), ceiling)
        if self._midpoints is None:
            held = (codes(low) <= wanted) & (codes(high) > wanted)
            self._midpoints = bool(held.mean() >= 0.25) if held.size >= 256 else None
        if self._midpoints is False:
            low, high = np.zeros_like(guess), ceiling
        border = self._bisect(codes, wanted, low, high)
        chosen = stepped(border, self.generator.choice(_STEPS, x.shape))
        return np.where(np.abs(chosen) <= tops, chosen, border).astype(x.dtype)

    @staticmethod
    def _bisect(of: Callable[[Array], Array], below: Array, least: Array, most: Array) -> Array:
        """The smallest inputs above `least` whose code stands for more than `below`; `most` where none does."""
        unsigned = f"u{most.dtype.itemsize}"
        low, high = (np.ascontiguousarray(end).view(unsigned).astype(np.int64) for end in (least, most))
        while (high - low > 1).any():
            middle = (low + high) // 2
            above = of(middle.astype(unsigned).view(most.dtype)) > below
            high, low = np.where(above, middle, high), np.where(above, low, middle)
        return high.astype(unsigned).view(most.dtype)

    def _quantize(self, x: Array, scale: float | None) -> Quantized:
        with np.errstate(all="ignore"):
            return plain.quantize(x, self.recipe, scale=scale)

    def _signed(self, x: Array) -> Array:
        negative = self.generator.random(x.shape) < self.generator.choice([0.0, 0.5, 0.5])
        return np.where(negative, -x, x).astype(x.dtype)

    def shapes(self, dims: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
        """Shapes without end, small ones first; a quantizer has one or two heads, now and then four or eight."""
        for number in count():
            tokens = _TOKENS[number % len(_TOKENS)]
            yield tokens, _HEADS[number % len(_HEADS)], int(self.generator.choice(dims))


def tops_of(x: Array, shape: tuple[int, int, int], recipe: Recipe) -> Array:
    """The largest element that each one may be without changing a scale: its group's, or the whole tensor's."""
    largest = np.abs(x).max(axis=1)
    if recipe.inner is None:
        return np.full(shape, largest.max(), x.dtype)
    spread = np.repeat(largest[:, None], x.shape[1], axis=1)
    return spread.reshape(shape)


def stepped(x: Array, steps: Array) -> Array:
    """X moved by so many units in the last place; what would leave the finite numbers stays."""
    unsigned, signed = f"u{x.dtype.itemsize}", f"i{x.dtype.itemsize}"
    bits = np.ascontiguousarray(x).view(signed).astype(np.int64) + steps
    bits = np.maximum(bits, 0)
    moved = bits.astype(unsigned).view(x.dtype)
    return np.where(np.isfinite(moved), moved, x).astype(x.dtype)
