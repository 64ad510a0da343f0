"""Whose bits are these? Finds the recipes of the catalogue that reproduce the bytes of a dump."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat import cache
from kvformat.recipes.admissible import is_approximate, outer_scales, within
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.difference import comparable
from kvformat.recipes.intervals import Value
from kvformat.recipes.program import Recipe
from kvformat.verify.dump import Dump
from kvformat.verify.report import SIDES

#: elements judged at once; the interval reader keeps some twenty arrays of this size
_CHUNK = 1 << 18
#: tokens that every recipe is tried on before any is tried on the whole dump: those around the first difference
_SAMPLE = 8


def reproducing(dump: Dump, declared: Recipe, token: int) -> tuple[str, ...]:
    """The names of the recipes other than `declared` that give every code and scale of the dump, exact ones first.

    token: where the declared recipe fails first; recipes that fail there too are not tried any further.
    """
    extremes = {side: _extremes(dump, side) for side in SIDES}
    found = []
    for recipe in map(find_recipe, names()):
        if recipe.name == declared.name or recipe.element is None or not comparable(recipe, declared):
            continue
        judged = _Judge(dump, recipe.for_input(dump.key.dtype.name), extremes)
        if judged.holds(max(0, token - _SAMPLE // 2), token + _SAMPLE) and judged.holds(0, dump.tokens):
            found.append((judged.allowed, recipe.name))
    return tuple(name for _, name in sorted(found, key=lambda pair: pair[0]))


class _Judge:
    """One recipe against the bytes of a dump."""

    def __init__(self, dump: Dump, recipe: Recipe, extremes: Mapping[str, NDArray[np.float32]]) -> None:
        self.dump = dump
        self.recipe = recipe
        given = {"k": dump.k_scale, "v": dump.v_scale}
        self.outer = {side: outer_scales(recipe, extremes[side], _as_given(recipe, given[side])) for side in SIDES}
        self.allowed = is_approximate(recipe)

    def holds(self, start: int, stop: int) -> bool:
        """Whether the recipe may give every code and scale of these tokens."""
        return all(self._chunk_holds(side, *chunk) for chunk in _chunks(self.dump, start, stop) for side in SIDES)

    def _chunk_holds(self, side: Any, start: int, stop: int) -> bool:
        slots = self.dump.slot_mapping[start:stop]
        kept = np.flatnonzero(slots >= 0)
        x = self.dump.rows(side, start, stop)[kept].astype(np.float32)
        rows = x.reshape(-1, x.shape[2])
        found = cache.load(self.dump.layout, self.dump.pages, slots[kept], side, self.recipe, np.float32(1))
        codes = found.codes.view(np.uint8).reshape(rows.shape)
        scales = found.scales.reshape(len(rows), -1) if self.recipe.inner else np.zeros((len(rows), 0), np.float32)
        outer: Mapping[str, Value] = self.outer[side]
        return all(bool(good.all()) for good in within(rows, self.recipe, outer, codes, scales))


def _as_given(recipe: Recipe, scale: np.float32 | None) -> np.float32 | None:
    """A dump's scale, a decode multiplier, as the recipe takes it."""
    encode = any(level.multiplier == "encode" for level in recipe.outer)
    return np.float32(1) / scale if encode and scale is not None else scale


def _chunks(dump: Dump, start: int, stop: int) -> Iterator[tuple[int, int]]:
    step = max(1, _CHUNK // (dump.layout.num_kv_heads * max(dump.layout.head_size, dump.layout.head_size_v)))
    for first in range(start, min(stop, dump.tokens), step):
        yield first, min(first + step, stop, dump.tokens)


def _extremes(dump: Dump, side: Any) -> NDArray[np.float32]:
    """A few elements that reduce to what the whole side reduces to: its extreme finite values, a NaN, an Inf."""
    kept: list[NDArray[np.float32]] = []
    for start, stop in _chunks(dump, 0, dump.tokens):
        x = dump.rows(side, start, stop).astype(np.float32).reshape(-1)
        finite = x[np.isfinite(x)]
        ends = [finite.min(), finite.max()] if finite.size else []
        kept.append(np.array([*ends, *x[~np.isfinite(x)][:64]], np.float32))
    return np.concatenate(kept)
