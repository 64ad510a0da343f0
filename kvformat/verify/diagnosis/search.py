"""`diagnose`: tries every recipe, layout and fault on the bytes of a dump, and orders them by what they explain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.difference import comparable
from kvformat.recipes.program import Recipe
from kvformat.verify.diagnosis import sample
from kvformat.verify.diagnosis.bench import Bench, Rows
from kvformat.verify.diagnosis.catalogue import FAULTS
from kvformat.verify.diagnosis.diagnosis import Diagnosis, Explanation, Hypothesis
from kvformat.verify.diagnosis.fault import Fault, Variant
from kvformat.verify.diagnosis.remaps import SIDES, Frame
from kvformat.verify.diagnosis.sheet import Arithmetic, Choice, Geometry, Sheet, geometries, unpacked
from kvformat.verify.dump import Dump
from kvformat.verify.identify import Side

Mask = NDArray[np.bool_]
Counts = NDArray[np.int64]

#: explanations that a diagnosis lists, and hypotheses that are looked at closely for them
_LISTED = 5
_CLOSE = 96
#: hypotheses with approximate instructions whose bounds are worked out: some 20 ms each
_BOUNDED = 16
#: recipes besides the declared one whose faults are tried where nothing else explains the bytes
_FURTHER = 3


@dataclass(frozen=True)
class _Candidate:
    """What a hypothesis says of each side, and what it costs before it is looked at closely."""

    choices: dict[Side, Choice]
    cost: int
    departures: int


@dataclass(frozen=True)
class _Verdict:
    """A candidate looked at closely: what it explains, byte by byte, and how."""

    candidate: _Candidate
    hypothesis: Hypothesis
    explained: Mask
    wrong: int
    open: int
    allowance: int
    approximate: bool

    @property
    def rank(self) -> tuple[Any, ...]:
        """The better, the smaller."""
        # what says nothing of most bytes explains nothing
        wrong = self.wrong if self.open <= _most(self.explained.size) else self.explained.size
        departures = self.candidate.departures
        return wrong, self.allowance > 0, self.open, departures, self.approximate, self.allowance


def diagnose(
    dump: Dump, *, recipe: str | Recipe | None = None, progress: Callable[[int, int], None] | None = None
) -> Diagnosis:
    """Name the recipe, the layout and the faults that reproduce the bytes of a dump.

    Every recipe of the catalogue and every fault of `FAULTS`, alone and one of arithmetic with one of layout, is
    compared with the bytes of the dump's tokens; of a large dump with a sample that has its differences in it, and the
    best ones then with all of it. recipe: what the dump is taken to declare, whatever it says. progress: called with
    (tokens done, tokens in all).

    Raises InputError where the dump cannot be judged: no token has a slot, or its recipe cannot take its K and V.
    """
    if recipe is not None:
        dump = dump.declaring(recipe)
    declared = find_recipe(dump.layout.recipe if dump.recipe is None else dump.recipe).for_input(dump.key.dtype.name)
    slots = np.flatnonzero(dump.slot_mapping >= 0)
    if not len(slots):
        raise InputError(
            "no token of the dump has a slot (all of slot_mapping is negative), so there is nothing to judge"
        )
    tokens = sample.chosen(dump, declared, slots, progress)
    search = _Search(dump, declared, tokens)
    verdicts = search.run()
    own = search.own()
    confirmed = len(tokens)
    if len(tokens) < len(slots):
        verdicts, own, confirmed = search.confirmed(verdicts, own, slots, progress)
    listed = _grouped(verdicts, own)
    return Diagnosis(
        explanations=listed,
        declared=own.hypothesis,
        recipe_assumed=dump.recipe is None,
        layout=dump.layout.spec,
        own=next(each for each in listed if own.hypothesis in each.members),
        sampled=len(tokens),
        confirmed=confirmed,
        tokens=len(slots),
        tried=search.tried,
    )


class _Search:
    """One dump's tokens, and everything that is tried on them."""

    def __init__(self, dump: Dump, declared: Recipe, tokens: NDArray[np.int64]) -> None:
        self.dump = dump
        self.declared = declared
        self.bench = Bench(dump, declared, tokens)
        frame = Frame(dump.layout, dump.slot_mapping[tokens], len(dump.pages))
        self.sheet = Sheet(self.bench, geometries(frame, lambda: _variants(dump.mode, "layout")))
        self.sheet.add(Arithmetic(declared))

    def run(self) -> list[_Verdict]:
        """The best hypotheses looked at closely, the best one first."""
        for fault, variant in _variants(self.dump.mode, "arithmetic", "scale"):
            self.sheet.add(Arithmetic(self.declared, fault, variant, 1))
        for each in self._others():
            self.sheet.add(Arithmetic(each, None, departures=1))
        best = self._judged()
        if best[0].wrong:
            for name in self._nearest_recipes():
                other = find_recipe(name).for_input(self.dump.key.dtype.name)
                for fault, variant in _variants(self.dump.mode, "arithmetic", "scale"):
                    self.sheet.add(Arithmetic(other, fault, variant, 2))
            best = self._judged()
        return best

    @property
    def tried(self) -> int:
        """How many hypotheses were compared with the bytes."""
        return len(self.sheet.arithmetics) * len(self.sheet.geometries)

    def own(self) -> _Verdict:
        """What the dump declares."""
        declared = Choice(0, 0)
        return self._verdict(_Candidate(dict.fromkeys(SIDES, declared), 0, 0), bounds=True)

    def _others(self) -> Iterator[Recipe]:
        dtype = self.dump.key.dtype.name
        for recipe in map(find_recipe, names()):
            outer = [level.granularity.name for level in recipe.outer]
            if recipe.name != self.declared.name and outer in ([], ["per_tensor"]) and _alike(recipe, self.declared):
                yield recipe.for_input(dtype)

    def _nearest_recipes(self) -> list[str]:
        costs = self.sheet.costs()
        total = costs["k"].min(axis=1) + costs["v"].min(axis=1)
        plain = [a for a, each in enumerate(self.sheet.arithmetics) if each.fault is None and a]
        return [self.sheet.arithmetics[a].recipe.name for a in sorted(plain, key=lambda a: int(total[a]))[:_FURTHER]]

    def _judged(self) -> list[_Verdict]:
        candidates = self._candidates()
        bounded = 0
        verdicts = []
        for candidate in candidates:
            approximate = self._is_approximate(candidate)
            bounds = approximate and candidate.cost >> 32 > 0 and bounded < _BOUNDED
            bounded += bounds
            verdicts.append(self._verdict(candidate, bounds=bounds))
        return sorted(verdicts, key=lambda each: each.rank)

    def _candidates(self) -> list[_Candidate]:
        """The hypotheses of the sheet with the least cost, cheapest first; among them some with approximate words."""
        costs = self.sheet.costs()
        kinds = self.sheet.arithmetics, self.sheet.geometries
        coupled = np.array([each.places.coupled or bool(found.contested.ids.size)
                            for each, found in zip(self.sheet.geometries, self.sheet.found, strict=True)])  # fmt: skip
        total_bytes = self._bytes()
        total = np.zeros(costs["k"].shape, np.int64)
        picked: dict[Side, NDArray[np.int64]] = {}
        for side in SIDES:
            table = costs[side]
            nothing = np.iinfo(np.int64).max // 4
            options = np.stack([
                table,
                np.where(coupled, nothing, np.broadcast_to(table[:, :1], table.shape)),
                np.broadcast_to(table[:1], table.shape),
                np.where(coupled, nothing, np.broadcast_to(table[:1, :1], table.shape)),
            ])  # fmt: skip
            picked[side] = options.argmin(axis=0)
            total += options.min(axis=0)
        total = np.where((total & 0xFFFF_FFFF) > _most(total_bytes), total + (total_bytes << 32), total)
        departures = np.add.outer([each.departures for each in kinds[0]], [each.departures for each in kinds[1]])
        # the first of equals, and the plainest
        order = np.lexsort((np.arange(total.size), departures.reshape(-1), total.reshape(-1)))
        approximate = np.array([is_approximate(each.recipe) for each in kinds[0]])
        wide = order[np.repeat(approximate, total.shape[1])[order]][: 2 * _BOUNDED]
        exact = order[:_CLOSE]
        chosen = [*exact.tolist(), *(flat for flat in wide.tolist() if flat not in set(exact.tolist()))]
        found = []
        for flat in chosen:
            a, g = divmod(flat, total.shape[1])
            choices = {side: self.sheet.plain(side, _choice(int(picked[side][a, g]), a, g)) for side in SIDES}
            uses = {each.arithmetic for each in choices.values()}, {each.geometry for each in choices.values()}
            if a in uses[0] and g in uses[1]:  # else it is another entry of the sheet
                found.append(_Candidate(choices, int(total[a, g]), int(departures[a, g])))
        return found

    def _bytes(self) -> int:
        rows = [self.sheet.rows(side, Choice(0, 0)) for side in SIDES]
        return sum(each.codes.size * min(each.bits, 8) // 8 + each.scales.size for each in rows)

    def _is_approximate(self, candidate: _Candidate) -> bool:
        return any(is_approximate(self.sheet.arithmetics[each.arithmetic].recipe) for each in candidate.choices.values())

    # --- one hypothesis closely -----------------------------------------------------------------------------------

    def _verdict(self, candidate: _Candidate, *, bounds: bool) -> _Verdict:
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
        return _Verdict(
            candidate,
            self._hypothesis(candidate),
            explained,
            int(np.count_nonzero(missed)),
            int(np.count_nonzero(unsaid)),
            allowance,
            self._is_approximate(candidate),
        )

    def _beyond_bounds(self, side: Side, choice: Choice, rows: Rows, wrong: tuple[Mask, ...]) -> tuple[Mask, ...]:
        """What of the wrong bytes the bounds of approximate instructions do not allow either."""
        arithmetic = self.sheet.arithmetics[choice.arithmetic]
        found = self.sheet.found[choice.geometry]
        codes = unpacked(found.bytes[side, "code"], rows.bits, found.places.packing)
        inner = arithmetic.recipe.inner
        if (side, "scale") in found.bytes and rows.scales.size:
            raw = np.ascontiguousarray(found.bytes[side, "scale"])
        else:
            raw = rows.scales
        scales = raw.view("<f4").astype(np.float32) if inner and inner.store == "float32" else raw
        masks = self.bench.allowed(side, arithmetic.recipe, arithmetic.variant, codes, scales)
        if masks is None:
            return wrong
        good_scales, good_codes = masks
        if rows.bits == 4:
            good_codes = _both_nibbles(good_codes, found.places.packing)
        beyond = [wrong[0] & ~good_codes]
        if len(wrong) > 1:
            width = wrong[1].shape[2] // max(good_scales.shape[2], 1)
            beyond.append(wrong[1] & ~np.repeat(good_scales, width, axis=2))
        return tuple(beyond)

    def _hypothesis(self, candidate: _Candidate) -> Hypothesis:
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
        layout = f"{' and '.join(layouts)} {self.dump.layout.order}"
        return Hypothesis(tuple(faults), tuple(variants), tuple(sides), " and ".join(recipes), layout)

    def confirmed(
        self,
        verdicts: list[_Verdict],
        own: _Verdict,
        slots: NDArray[np.int64],
        progress: Callable[[int, int], None] | None,
    ) -> tuple[list[_Verdict], _Verdict, int]:
        """The best verdicts on all tokens."""
        raise NotImplementedError


def _most(total: int) -> int:
    """How many bytes a hypothesis may say nothing of: seven of eight."""
    return total - total // 8


def _alike(recipe: Recipe, declared: Recipe) -> bool:
    if declared.element is None or recipe.element is None:
        return False
    if element(recipe.element).bits != element(declared.element).bits:
        return False
    return recipe.mode == declared.mode and (comparable(recipe, declared) or recipe.inner == declared.inner is None)


def _choice(option: int, a: int, g: int) -> Choice:
    return (Choice(a, g), Choice(a, 0), Choice(0, g), Choice(0, 0))[option]


def _both_nibbles(good: Mask, packing: Any) -> Mask:
    half = good.shape[2] // 2
    if packing.startswith("halves"):
        return good[..., :half] & good[..., half:]
    return good[..., 0::2] & good[..., 1::2]


def _variants(mode: str, *kinds: str) -> Iterator[tuple[Fault, Variant]]:
    for fault in FAULTS.values():
        if fault.kind in kinds:
            for variant in fault.variants_in(mode):
                yield fault, variant


def _grouped(verdicts: list[_Verdict], own: _Verdict) -> tuple[Explanation, ...]:
    """The best groups of verdicts with the same bytes, and what the dump declares."""
    groups: dict[Any, list[_Verdict]] = {}
    for verdict in sorted([own, *verdicts], key=lambda each: each.rank):
        key: Any = (verdict.explained.tobytes(), verdict.wrong == 0 and verdict.allowance == 0)
        if verdict.wrong:
            key = (*key, str(verdict.hypothesis))
        group = groups.setdefault(key, [])
        if all(each.hypothesis != verdict.hypothesis for each in group):
            group.append(verdict)
    complete = [group for group in groups.values() if not group[0].rank[0]]
    others = [group for group in groups.values() if group[0].rank[0]]
    listed = [*complete[:_LISTED], *others[: 1 if complete else _LISTED]]
    if all(own.hypothesis != each.hypothesis for group in listed for each in group):
        listed[len(complete[:_LISTED]) :] = [*others[:0 if complete else _LISTED - 1], [own]]
    return tuple(_explanation(group, [other for other in listed if other is not group]) for group in listed)


def _explanation(group: list[_Verdict], others: list[list[_Verdict]]) -> Explanation:
    first = group[0]
    elsewhere = np.zeros(first.explained.shape, bool)
    for other in others:
        elsewhere |= other[0].explained
    # a fault that changes nothing here is no news, a recipe that gives the same bytes is
    most = first.candidate.departures
    plain = [each for each in group if each.candidate.departures <= most or not each.hypothesis.faults]
    return Explanation(
        members=tuple(each.hypothesis for each in plain),
        explained=int(np.count_nonzero(first.explained)),
        total=first.explained.size,
        only=int(np.count_nonzero(first.explained & ~elsewhere)),
        wrong=first.wrong,
        open=first.open,
        allowance=first.allowance,
    )

