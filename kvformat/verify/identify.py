"""Whose bits are these? Finds the recipes of the catalogue that reproduce the bytes of a dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvformat import cache
from kvformat.dump.dump import Dump
from kvformat.recipes.admissible import is_approximate, outer_scales, within
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.difference import comparable
from kvformat.recipes.intervals import Value
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized, quantize

Side = Literal["k", "v"]
SIDES: tuple[Side, ...] = ("k", "v")

#: elements judged at once; the interval reader keeps some twenty arrays of this size
_CHUNK = 1 << 16
#: tokens that every recipe is tried on before any is tried on more: those around the first difference
_SAMPLE = 8
#: elements a side up to which a dump is judged whole; of a larger one, as many in evenly spaced chunks
_WHOLE = 1 << 24


@dataclass(frozen=True)
class Identity:
    """The recipes that reproduce a dump's bytes: exact ones, and those whose bounds merely allow them."""

    exact: tuple[str, ...]
    allowed: tuple[str, ...]
    #: tokens that were judged, and in all
    judged: int
    tokens: int

    @property
    def names(self) -> tuple[str, ...]:
        """All of them, exact ones first."""
        return (*self.exact, *self.allowed)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def __str__(self) -> str:
        how = "exactly" if self.exact else "within the bounds of"
        first, *others = self.exact or self.allowed
        also = f" (as {', '.join(others)} would give)" if others else ""
        sample = "" if self.judged == self.tokens else f" in all {self.judged:,} sampled tokens of {self.tokens:,}"
        return f"these are {how} {first}{also}{sample}"


def identify(dump: Dump, declared: Recipe, token: int) -> Identity:
    """The recipes of the catalogue, other than `declared`, that give every code and scale of the dump.

    token: where the declared recipe fails first; recipes that fail around it are not tried any further.
    """
    ends = {side: extremes(dump, side) for side in dump.layout.sides}
    around = [(max(0, token - _SAMPLE // 2), min(token + _SAMPLE, dump.tokens))]
    chunks = _spaced(dump)
    found: dict[bool, list[str]] = {False: [], True: []}
    for recipe in map(find_recipe, names()):
        if recipe.name == declared.name or recipe.element is None or not comparable(recipe, declared):
            continue
        judged = _Judge(dump, recipe.for_input(dump.key.dtype.name), declared, ends)
        if judged.holds(around) and judged.holds(chunks):
            found[is_approximate(recipe)].append(recipe.name)
    tokens = sum(stop - start for start, stop in chunks)
    return Identity(tuple(found[False]), tuple(found[True]), tokens, dump.tokens)


class _Judge:
    """One recipe against the bytes of a dump."""

    def __init__(self, dump: Dump, recipe: Recipe, declared: Recipe, ends: Mapping[Side, NDArray[np.float32]]) -> None:
        self.dump = dump
        self.recipe = recipe
        given: dict[Side, np.float32 | None] = {"k": dump.k_scale, "v": dump.v_scale}
        self.outer = {
            side: outer_scales(recipe, ends[side], as_given(recipe, declared, given[side]))
            for side in dump.layout.sides
        }

    def holds(self, chunks: Sequence[tuple[int, int]]) -> bool:
        """Whether the recipe may give every code and scale of these tokens."""
        return all(self._chunk_holds(side, *chunk) for chunk in chunks for side in self.dump.layout.sides)

    def _chunk_holds(self, side: Side, start: int, stop: int) -> bool:
        slots = self.dump.slot_mapping[start:stop]
        kept = np.flatnonzero(slots >= 0)
        if not len(kept):
            return True
        x = _judged(self.dump, side, start, stop)[kept].astype(np.float32)
        rows = x.reshape(-1, x.shape[2])
        found = cache.load(self.dump.layout, self.dump.pages, slots[kept], side, self.recipe, np.float32(1))
        if not self.recipe.one_scale_a_group:
            return holds_exactly(quantize(_judged(self.dump, side, start, stop)[kept], self.recipe), found)
        codes = found.codes.view(np.uint8).reshape(rows.shape)
        scales = found.scales.reshape(len(rows), -1) if self.recipe.inner else np.zeros((len(rows), 0), np.float32)
        outer: Mapping[str, Value] = self.outer[side]
        return all(bool(good.all()) for good in within(rows, self.recipe, outer, codes, scales))


def holds_exactly(expected: Quantized, found: Quantized) -> bool:
    """Whether codes and all parameters are the same bits."""
    pairs = [(expected.scales, found.scales), *((expected.more[name], each) for name, each in found.more.items())]
    return np.array_equal(expected.codes, found.codes) and not any(
        level.format.differs(*pair).any() for level, pair in zip(expected.recipe.in_page.values(), pairs, strict=True)
    )


def as_given(recipe: Recipe, declared: Recipe, scale: np.float32 | None) -> np.float32 | None:
    """A dump's scale, which is the declared recipe's own number, as another recipe takes it; None: computed anew."""
    kinds = [{level.multiplier for level in each.outer if level.may_be_given} for each in (recipe, declared)]
    if scale is None or kinds[0] == kinds[1]:
        return scale
    return None if "amax" in kinds[0] | kinds[1] else np.float32(1) / scale


def _chunks(dump: Dump) -> list[tuple[int, int]]:
    step = max(1, _CHUNK // _row(dump))
    return [(start, min(start + step, dump.tokens)) for start in range(0, dump.tokens, step)]


def _spaced(dump: Dump) -> list[tuple[int, int]]:
    """The chunks to judge: all, or of a large dump so many that they make _WHOLE elements a side."""
    chunks = _chunks(dump)
    wanted = max(1, _WHOLE // _CHUNK)
    if len(chunks) <= wanted:
        return chunks
    return [chunks[i * (len(chunks) - 1) // max(1, wanted - 1)] for i in range(wanted)]


def _row(dump: Dump) -> int:
    return dump.layout.num_kv_heads * max(dump.layout.head_size, dump.layout.head_size_v)


def _judged(dump: Dump, side: Side, start: int, stop: int) -> NDArray[Any]:
    """The dims of rows start..stop-1 that the page's recipe covers, which are the first ones."""
    return dump.rows(side, start, stop)[..., : dump.layout.segments(side)[0].dims.stop]


def extremes(dump: Dump, side: Side, *, written: bool = False) -> NDArray[np.float32]:
    """A few elements that reduce to what the whole side reduces to: its extreme finite values, a NaN, an Inf.

    written: only of rows that have a slot.
    """
    kept: list[NDArray[np.float32]] = []
    for start, stop in _chunks(dump):
        rows = _judged(dump, side, start, stop)
        x = (rows[dump.slot_mapping[start:stop] >= 0] if written else rows).astype(np.float32).reshape(-1)
        finite = x[np.isfinite(x)]
        ends = [finite.min(), finite.max()] if finite.size else []
        kept.append(np.array([*ends, *x[~np.isfinite(x)][:64]], np.float32))
    return np.concatenate(kept)


def extremes_of_heads(dump: Dump, side: Side) -> NDArray[np.float32]:
    """`extremes` for each head: (1, heads, elements); a head without NaN or Inf has zeros for them."""
    ends: list[NDArray[np.float32]] = []
    for start, stop in _chunks(dump):
        x = dump.rows(side, start, stop).astype(np.float32)
        finite = np.where(np.isfinite(x), x, np.float32(0))
        odd = [np.where((test(x)).any(axis=(0, 2)), np.float32(value), np.float32(0))
               for test, value in ((np.isnan, np.nan), (np.isposinf, np.inf), (np.isneginf, -np.inf))]  # fmt: skip
        ends.append(np.concatenate([finite.min(axis=0), finite.max(axis=0), np.stack(odd, axis=1)], axis=1))
    return np.concatenate(ends, axis=1)[None]
