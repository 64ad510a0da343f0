"""One hypothesis looked at closely: which bytes it explains, which it contradicts, and what its bounds allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose.diagnosis import Hypothesis
from kvformat.diagnose.remaps import SIDES
from kvformat.diagnose.rows import Rows
from kvformat.diagnose.sheet import Arithmetic, Choice, Geometry, Sheet, unpacked
from kvformat.recipes.admissible import is_approximate
from kvformat.verify.identify import Side

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Candidate:
    """What a hypothesis says of each side, and what it costs before it is looked at closely."""

    choices: Mapping[Side, Choice]
    cost: int
    departures: int


@dataclass(frozen=True)
class Verdict:
    """A candidate looked at closely, byte by byte over K codes, K scales, V codes, V scales."""

    candidate: Candidate
    hypothesis: Hypothesis
    explained: Mask
    wrong: int
    #: bytes of which it says nothing; `lost` of them because other rows lie on them
    open: int
    lost: int
    #: explained bytes that are not the IEEE ones
    allowance: int
    approximate: bool

    @property
    def rank(self) -> tuple[Any, ...]:
        """The better, the smaller."""
        return self.distance, self.allowance > 0, self.open - self.lost, self.candidate.departures, self.approximate

    @property
    def distance(self) -> int:
        """0 where nothing contradicts it, else how many bytes it does not explain."""
        credible = self.wrong == 0 and self.open <= most_open(self.explained.size)
        return 0 if credible else max(self.wrong + self.open, 1)


def most_open(total: int) -> int:
    """How many bytes a hypothesis may say nothing of, seven of eight: with fewer it explains nothing."""
    return total - total // 8


class Judge:
    """The judge of the candidates of a sheet."""

    def __init__(self, sheet: Sheet, order: str) -> None:
        self.sheet = sheet
        self.order = order

    def is_approximate(self, candidate: Candidate) -> bool:
        """Whether a recipe of the candidate has approximate instructions."""
        return any(
            is_approximate(self.sheet.arithmetics[each.arithmetic].recipe) for each in candidate.choices.values()
        )

    def verdict(self, candidate: Candidate, *, bounds: bool) -> Verdict:
        """The candidate byte by byte. bounds: work out what approximate instructions allow."""
        wrong: list[Mask] = []
        open_: list[Mask] = []
        allowance = 0
        for side in SIDES:
            choice = candidate.choices[side]
            rows, found = self.sheet.rows(side, choice), self.sheet.found[choice.geometry]
            bad, unknown = found.masks(side, rows)
            if bounds and is_approximate(self.sheet.arithmetics[choice.arithmetic].recipe):
                before = sum(int(mask.sum()) for mask in bad)
                bad = self._beyond_bounds(side, choice, rows, bad)
                allowance += before - sum(int(mask.sum()) for mask in bad)
            wrong += [mask.reshape(-1) for mask in bad]
            open_ += [mask.reshape(-1) for mask in unknown]
        geometry = self.sheet.found[candidate.choices["k"].geometry]
        bad_bytes = np.concatenate(wrong)
        lost = geometry.contested.lost(bad_bytes)
        missed, unsaid = bad_bytes & ~lost, np.concatenate(open_) | lost
        explained = ~missed & ~unsaid
        return Verdict(
            candidate,
            self._hypothesis(candidate),
            explained,
            int(np.count_nonzero(missed)),
            int(np.count_nonzero(unsaid)),
            int(np.count_nonzero(lost)),
            allowance,
            self.is_approximate(candidate),
        )

    def _beyond_bounds(self, side: Side, choice: Choice, rows: Rows, wrong: tuple[Mask, ...]) -> tuple[Mask, ...]:
        """What of the wrong bytes the bounds of approximate instructions do not allow either."""
        tokens = np.any([mask.any(axis=(1, 2)) for mask in wrong], axis=0)
        arithmetic, found = self.sheet.arithmetics[choice.arithmetic], self.sheet.found[choice.geometry]
        if not tokens.any():
            return wrong
        packing = found.places.packing
        codes = unpacked(found.bytes[side, "code"][tokens], rows.bits, packing)
        raw = np.ascontiguousarray(found.bytes.get((side, "scale"), rows.scales)[tokens])
        inner = arithmetic.recipe.inner
        scales = inner.format.of_bytes(raw) if inner else raw
        bench = self.sheet.bench.on(self.sheet.bench.tokens[tokens])
        masks = bench.allowed(side, arithmetic.recipe, arithmetic.variant, codes, scales)
        if masks is None:
            return wrong
        good_scales, good_codes = masks
        beyond = [mask.copy() for mask in wrong]
        beyond[0][tokens] &= ~(_both_nibbles(good_codes, packing) if rows.bits == 4 else good_codes)
        if len(wrong) > 1:
            width = wrong[1].shape[2] // max(good_scales.shape[2], 1)
            beyond[1][tokens] &= ~np.repeat(good_scales, width, axis=2)
        return tuple(beyond)

    def _hypothesis(self, candidate: Candidate) -> Hypothesis:
        sheet, choices = self.sheet, candidate.choices
        faults, variants, sides = [], [], []
        used: tuple[tuple[str, Sequence[Arithmetic | Geometry]], ...]
        used = (("arithmetic", sheet.arithmetics), ("geometry", sheet.geometries))
        for name, kinds in used:
            for place in dict.fromkeys(getattr(each, name) for each in choices.values()):
                each = kinds[place]
                if each.fault is not None:
                    faults.append(each.fault.id)
                    variants.append(each.variant.label)
                    sides.append("".join(side for side in SIDES if getattr(choices[side], name) == place))
        recipes = dict.fromkeys(sheet.arithmetics[each.arithmetic].recipe.name for each in choices.values())
        layouts = dict.fromkeys(sheet.geometries[each.geometry].layout for each in choices.values())
        layout = f"{' and '.join(layouts)} {self.order}"
        return Hypothesis(tuple(faults), tuple(variants), tuple(sides), " and ".join(recipes), layout)


def _both_nibbles(good: Mask, packing: str) -> Mask:
    half = good.shape[2] // 2
    if packing.startswith("halves"):
        return good[..., :half] & good[..., half:]
    return good[..., 0::2] & good[..., 1::2]
