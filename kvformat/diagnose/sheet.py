"""The score sheet: how many bytes of a dump each arithmetic explains where each geometry finds them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose.bench import RIGHT, Bench
from kvformat.diagnose.fault import Fault, Variant
from kvformat.diagnose.remaps import SIDES, Frame, OtherLayout, Packing, Part, Places, right_places
from kvformat.diagnose.rows import Rows, is_nan
from kvformat.elements.formats import ELEMENTS, element
from kvformat.layouts import LAYOUTS
from kvformat.recipes.program import Recipe
from kvformat.verify.identify import Side

Mask = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]

#: a wrong byte weighs more than any number of bytes that are not predicted
_WRONG = 1 << 32


@dataclass(frozen=True)
class Arithmetic:
    """A recipe, perhaps with a fault."""

    recipe: Recipe
    fault: Fault | None = None
    variant: Variant = RIGHT
    #: steps away from what the dump declares
    departures: int = 0
    #: the per-tensor scale that fits, where the variant asks for one and it is known
    fitted: np.float32 | None = None


@dataclass(frozen=True)
class Geometry:
    """Where rows lie: the declared layout, perhaps with a fault, or another layout."""

    layout: str
    places: Places
    fault: Fault | None = None
    variant: Variant = RIGHT
    departures: int = 0

    def at(self, places: Places) -> Geometry:
        """The same for other tokens."""
        return replace(self, places=places)


@dataclass(frozen=True)
class Choice:
    """What one hypothesis says of one side: an arithmetic and a geometry, by their place on the sheet."""

    arithmetic: int
    geometry: int


class Sheet:
    """Arithmetics against geometries on the bytes of some tokens. Place 0 of either is what the dump declares."""

    def __init__(self, bench: Bench, geometries: Sequence[Geometry]) -> None:
        self.bench = bench
        self.pages: Bytes = bench.dump.pages.reshape(-1)
        self.arithmetics: list[Arithmetic] = []
        self.geometries = list(geometries)
        self.found = [Found(self.pages, each.places) for each in self.geometries]
        self._made: dict[Side, list[Rows]] = {side: [] for side in SIDES}
        self._distinct: dict[tuple[Side, Any], int] = {}
        #: by side, the row of `_made` that an arithmetic has; -1 where it depends on what is found
        self._place: dict[Side, list[int]] = {side: [] for side in SIDES}
        #: what the rows of `_made` cost in each geometry, as far as that was counted; and those that depend
        self._counted: dict[Side, list[list[int]]] = {side: [] for side in SIDES}
        self._cost: dict[Side, list[Counts]] = {side: [] for side in SIDES}
        self._joint: dict[tuple[int, int, int], int] = {}
        self._right: dict[tuple[Side, int], bool] = {}

    def add(self, candidate: Arithmetic) -> bool:
        """Take an arithmetic on the sheet, unless it does not apply or changes nothing."""
        rows: dict[Side, Rows] = {}
        if candidate.variant.tensor == "?":
            if self.bench.rows("k", candidate.recipe, candidate.variant, np.float32(1)) is None:
                return False
            self.arithmetics.append(candidate)
            for side in SIDES:
                self._place[side].append(-1)
                self._cost[side].append(self._fitted_costs(side, candidate))
            return True
        for side in SIDES:
            made = self.bench.rows(side, candidate.recipe, candidate.variant)
            if made is None:
                return False
            rows[side] = made
        places = {side: self._placed(side, rows[side]) for side in SIDES}
        if candidate.fault and all(places[side] == self._place[side][0] for side in SIDES):
            return False
        self.arithmetics.append(candidate)
        for side in SIDES:
            self._place[side].append(places[side])
        return True

    def take(self, candidate: Arithmetic) -> None:
        """Take an arithmetic that was on another sheet: it applies."""
        self.arithmetics.append(candidate)
        for side in SIDES:
            made = self.bench.rows(side, candidate.recipe, candidate.variant, candidate.fitted)
            assert made is not None
            self._place[side].append(len(self._made[side]))
            self._made[side].append(made)

    def settled(self, side: Side, choice: Choice) -> Arithmetic:
        """What a choice says of a side, a scale that fits as the number that it is."""
        candidate = self.arithmetics[choice.arithmetic]
        if self._place[side][choice.arithmetic] >= 0:
            return candidate
        fitted = self.fit(side, candidate, self.found[choice.geometry])
        return replace(candidate, fitted=np.float32(1) if fitted is None else fitted)

    @property
    def num_bytes(self) -> int:
        """How many bytes of the pages the tokens have."""
        rows = [self.rows(side, Choice(0, 0)) for side in SIDES]
        return sum(packed(each, "low first").size + each.scales.size for each in rows)

    def _placed(self, side: Side, rows: Rows) -> int:
        key = side, rows.digest
        if key not in self._distinct:
            self._distinct[key] = len(self._made[side])
            self._made[side].append(rows)
        return self._distinct[key]

    def rows(self, side: Side, choice: Choice) -> Rows:
        """What a choice predicts of a side."""
        place = self._place[side][choice.arithmetic]
        if place >= 0:
            return self._made[side][place]
        candidate = self.settled(side, choice)
        made = self.bench.rows(side, candidate.recipe, candidate.variant, candidate.fitted)
        assert made is not None
        return made

    def plain(self, side: Side, choice: Choice) -> Choice:
        """The choice without what changes nothing on this side."""
        a, g = choice.arithmetic, choice.geometry
        if self._place[side][a] == self._place[side][0] >= 0 and self.arithmetics[a].fault:
            a = 0
        return Choice(a, 0 if self._lies_right(side, g) else g)

    def _lies_right(self, side: Side, g: int) -> bool:
        """Whether a geometry leaves a side where it belongs."""
        if (side, g) not in self._right:
            places = self.geometries[g].places
            self._right[side, g] = not places.coupled and places.same_as(self.geometries[0].places, side)
        return self._right[side, g]

    def costs(self) -> dict[Side, Counts]:
        """By side, (arithmetics, geometries): wrong bytes times 2^32, plus bytes that are not predicted."""
        table: dict[Side, Counts] = {}
        for side in SIDES:
            counted = self._counted[side]
            for rows in self._made[side][len(counted) :]:
                counted.append(
                    [0 if found.contested.ids.size else self._cost_of(side, rows, found) for found in self.found]
                )
            distinct = np.array(counted, np.int64).reshape(-1, len(self.found))
            fitted = iter(self._cost[side])
            table[side] = np.array([distinct[p] if p >= 0 else next(fitted) for p in self._place[side]])
        for g, found in enumerate(self.found):
            if not found.contested.ids.size:
                continue
            for a in range(len(self.arithmetics)):
                table["k"][a, g] = self._contested_cost(a, g)
                table["v"][a, g] = 0
        return table

    def _cost_of(self, side: Side, rows: Rows, found: Found) -> int:
        wrong, unknown = found.masks(side, rows)
        return _WRONG * sum(map(_count, wrong)) + sum(map(_count, unknown))

    def _contested_cost(self, a: int, g: int) -> int:
        """Of bytes that several rows lie on one row explains the byte and the others are lost, or none does."""
        places = self._place["k"][a], self._place["v"][a]
        if min(places) < 0:
            return _WRONG << 20
        if (*places, g) not in self._joint:
            found = self.found[g]
            masks = [found.masks(side, self._made[side][place]) for side, place in zip(SIDES, places, strict=True)]
            wrong = np.concatenate([mask.reshape(-1) for side in masks for mask in side[0]])
            unknown = sum(_count(mask) for side in masks for mask in side[1])
            self._joint[*places, g] = _WRONG * _count(wrong & ~found.contested.lost(wrong)) + unknown
        return self._joint[*places, g]

    # --- a per-tensor scale that fits -----------------------------------------------------------------------------

    def _fitted_costs(self, side: Side, candidate: Arithmetic) -> Counts:
        costs = []
        for found in self.found:
            fitted = None if found.contested.ids.size else self.fit(side, candidate, found)
            rows = None if fitted is None else self.bench.rows(side, candidate.recipe, candidate.variant, fitted)
            costs.append(_WRONG << 20 if rows is None else self._cost_of(side, rows, found))
        return np.array(costs, np.int64)

    def fit(self, side: Side, candidate: Arithmetic, found: Found) -> np.float32 | None:
        """A per-tensor decode scale by which every code found may have arisen; None if there is none.

        A code c is what x / s rounds to if s lies between x / (c + half a step) and x / (c - half a step).
        """
        assert candidate.recipe.element is not None
        values = element(candidate.recipe.element).values()
        codes, inside = found.code_bytes(side)
        x, _ = self.bench.x(side)
        value = values[codes].astype(np.float64)
        keep = np.isfinite(value) & (value != 0) & np.isfinite(x) & (x != 0) & inside
        keep &= np.abs(value) < values[np.isfinite(values)].max()
        if not keep.any():
            return None
        steps = np.unique(np.abs(values[np.isfinite(values)].astype(np.float64)))
        place = np.searchsorted(steps, np.abs(value[keep]))
        below, above = ((steps[place] + steps[place + step]) / 2 for step in (-1, 1))
        size = np.abs(x[keep].astype(np.float64))
        low, high = float((size / above).max()), float((size / below).min())
        if low > high:
            return None
        return _roundest(low, high)


def _roundest(low: float, high: float) -> np.float32:
    """The number between two with the fewest mantissa bits: a scale that somebody wrote down is short."""
    middle = (low + high) / 2
    for bits in range(24):
        unit = 2.0 ** (np.floor(np.log2(middle)) - bits)
        short = np.round(middle / unit) * unit
        if low < short < high:
            return np.float32(short)
    return np.float32(middle)


class Found:
    """The bytes that a geometry finds in the pages, by side and part, and which of them lie inside the pages."""

    def __init__(self, pages: Bytes, places: Places) -> None:
        self.places = places
        self.bytes: dict[Part, Bytes] = {}
        self.inside: dict[Part, Mask | None] = {}
        for part, at in places.at.items():
            inside = (at >= 0) & (at < pages.size)
            whole = bool(inside.all())
            self.inside[part] = None if whole else inside
            self.bytes[part] = pages[at if whole else np.where(inside, at, 0)]

    def masks(self, side: Side, rows: Rows) -> tuple[tuple[Mask, ...], tuple[Mask, ...]]:
        """Wrong bytes and bytes that are not predicted, codes then scales: (tokens, heads, bytes)."""
        wrong, unknown = [], []
        for part in ("code", "scale"):
            expected = packed(rows, self.places.packing) if part == "code" else rows.scales
            if part == "scale" and not expected.size:
                continue
            bad, open_ = self._masks_of((side, part), expected, rows)
            wrong.append(bad)
            unknown.append(open_)
        return tuple(wrong), tuple(unknown)

    def _masks_of(self, key: Part, expected: Bytes, rows: Rows) -> tuple[Mask, Mask]:
        scale = key[1] == "scale"
        if key not in self.bytes or (scale and rows.any_scale and not self.places.blank_scales):
            return np.zeros(expected.shape, bool), np.ones(expected.shape, bool)
        found = self.bytes[key]
        if scale and self.places.blank_scales:
            wrong = self._not_blank(found, rows)
        else:
            wrong = found != expected
            nan = rows.nan_scales if scale else rows.nan_codes
            if nan.size:
                wrong.reshape(-1)[nan] &= ~is_nan(found, rows.scale_dtype if scale else rows.code_dtype)[nan]
        unknown = np.zeros(expected.shape, bool)
        if rows.known is not None:
            unknown |= ~rows.known[:, None, None]
        if rows.predicted is not None:
            unknown |= ~rows.predicted[int(scale)]
        inside = self.inside[key]
        if inside is not None:
            unknown |= ~inside
        return wrong & ~unknown, unknown

    @staticmethod
    def _not_blank(found: Bytes, rows: Rows) -> Mask:
        first = found.reshape(-1)[0] if found.size else np.uint8(0)
        one = rows.scale_dtype in ELEMENTS and element(rows.scale_dtype).values()[first] == 1
        return np.ones(found.shape, bool) if one else found != first

    def code_bytes(self, side: Side) -> tuple[Bytes, Mask]:
        """The 8-bit codes found, (tokens, heads, dims), and which of them lie inside the pages."""
        codes = self.bytes[side, "code"]
        inside = self.inside[side, "code"]
        return codes, np.ones(codes.shape, bool) if inside is None else inside

    @cached_property
    def contested(self) -> Contested:
        """The bytes on which several rows lie."""
        return Contested(self.places)


class Contested:
    """Bytes that several entries lie on, as a writer whose rows overlap leaves them: the last one is not known."""

    def __init__(self, places: Places) -> None:
        self.ids: NDArray[np.int64] = np.zeros(0, np.int64)
        if not places.overlapping:
            return
        keys = [(side, part) for side in SIDES for part in ("code", "scale") if (side, part) in places.at]
        addresses = np.concatenate([places.at[key].reshape(-1) for key in keys])  # type: ignore[index]
        _, inverse, count = np.unique(addresses, return_inverse=True, return_counts=True)
        if count.max(initial=0) > 1:
            self.ids = inverse.reshape(-1)

    def lost(self, wrong: Mask) -> Mask:
        """Which bytes were overwritten: they are wrong, and another row explains what lies there.

        wrong: over all rows, by side and part.
        """
        if not self.ids.size:
            return np.zeros(wrong.shape, bool)
        explained = np.zeros(int(self.ids.max()) + 1, bool)
        explained[self.ids[~wrong]] = True
        lost: Mask = wrong & explained[self.ids]
        return lost


def packed(rows: Rows, packing: Packing) -> Bytes:
    """The codes of rows as they lie in the page: (tokens, heads, bytes)."""
    if rows.bits != 4:
        return rows.codes
    codes, half = rows.codes, rows.codes.shape[2] // 2
    halves = packing.startswith("halves")
    first, second = (codes[..., :half], codes[..., half:]) if halves else (codes[..., 0::2], codes[..., 1::2])
    low, high = (second, first) if packing.endswith("high first") else (first, second)
    together: Bytes = low | (high << np.uint8(4))
    return together


def unpacked(found: Bytes, bits: int, packing: Packing) -> Bytes:
    """`packed` undone."""
    if bits != 4:
        return found
    low, high = found & 15, found >> 4
    first, second = (high, low) if packing.endswith("high first") else (low, high)
    if packing.startswith("halves"):
        return np.concatenate([first, second], axis=-1)
    return np.stack([first, second], axis=-1).reshape(*found.shape[:-1], -1)


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))


def geometries(frame: Frame, faults: Iterable[tuple[Fault, Variant]]) -> list[Geometry]:
    """The declared layout, each layout fault that it leaves room for, other layouts; the same addresses once."""
    layout = frame.layout
    found = [Geometry(layout.name, right_places(frame))]
    remaps: list[tuple[str, Fault | None, Variant]] = [(layout.name, *each) for each in faults]
    for name, entry in LAYOUTS.items():
        form = dict(entry.modes).get(layout.mode)
        choices = [choice for choice, _ in form.v_scales] or [""] if form and name != layout.name else []
        others = (OtherLayout(name, layout.order, choice) for choice in choices)
        remaps += [(name, None, Variant(name, remap=other)) for other in others]
    for name, fault, variant in remaps:
        assert variant.remap is not None
        places = variant.remap.places(frame)
        if places is not None and not any(all(places.same_as(each.places, side) for side in SIDES) for each in found):
            found.append(Geometry(name, places, fault, variant, 1))
    return found
