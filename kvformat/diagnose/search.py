"""`diagnose`: tries every recipe, layout and fault on the bytes of a dump, and orders them by what they explain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose import sample
from kvformat.diagnose.bench import Bench
from kvformat.diagnose.catalogue import rivals, variants
from kvformat.diagnose.confirm import Counts, confirm, counted
from kvformat.diagnose.diagnosis import Diagnosis, Explanation
from kvformat.diagnose.inseparable import inseparable
from kvformat.diagnose.judge import Candidate, Judge, Verdict, most_open
from kvformat.diagnose.probe import PRODUCER
from kvformat.diagnose.remaps import SIDES, Frame
from kvformat.diagnose.sheet import Arithmetic, Choice, Sheet, geometries
from kvformat.dump.dump import Dump
from kvformat.errors import InputError
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Recipe, needs_one_scale
from kvformat.verify.identify import Side

#: explanations that a diagnosis lists, and hypotheses that are looked at closely for them
_LISTED = 5
_CLOSE = 96
#: hypotheses with approximate instructions whose bounds are worked out: some 20 ms each
_BOUNDED = 16
#: recipes besides the declared one whose faults are tried where nothing else explains the bytes
_FURTHER = 3
#: explanations that are confirmed on all of a large dump, besides the declared one
_CONFIRMED = 2

Group = list[Verdict]


def diagnose(
    dump: Dump, *, recipe: str | Recipe | None = None, progress: Callable[[int, int], None] | None = None
) -> Diagnosis:
    """Name the recipe, the layout and the faults that reproduce the bytes of a dump.

    Every recipe of the catalogue and every fault of `FAULTS`, alone and one of arithmetic with one of layout, is
    compared with the bytes of the dump's tokens; of a large dump with a sample that has its differences in it, and the
    best ones then with all of it. Of a dump made of a probe it also says what these K and V cannot tell apart.

    recipe: what the dump is taken to declare, whatever it says. progress: called with (tokens done, tokens in all).
    Raises InputError where the dump cannot be judged: no token has a slot, or its recipe cannot take its K and V.
    """
    if recipe is not None:
        dump = dump.declaring(recipe)
    if not dump.layout.uniform:
        raise InputError(
            f"layout {dump.layout.name} does not store K and V in one format each; check judges it, diagnose cannot"
        )
    declared = find_recipe(dump.layout.recipe if dump.recipe is None else dump.recipe).for_input(dump.key.dtype.name)
    slots = np.flatnonzero(dump.slot_mapping >= 0)
    if not len(slots):
        raise InputError(
            "no token of the dump has a slot (all of slot_mapping is negative), so there is nothing to judge"
        )
    needs_one_scale(declared, "diagnose")
    if declared.prepare:
        raise InputError(f"recipe {declared.name} transforms whole rows first; check judges it, diagnose cannot")
    shared = [level.granularity.name for level in declared.outer]
    if shared not in ([], ["per_tensor"]):
        raise InputError(
            f"recipe {declared.name} has scales {', '.join(shared)} beside the pages; a dump has one scale per tensor"
        )
    tokens = sample.chosen(dump, declared, slots, progress)
    search = _Search(dump, declared, tokens)
    groups = _grouped(search.run(), search.own())
    listed = _listed(groups, search.own(), _LISTED if len(tokens) == len(slots) else _CONFIRMED)
    if len(tokens) == len(slots):
        counts = counted([group[0] for group in listed])
    else:
        counts = confirm(search.sheet, [group[0] for group in listed], slots, progress)
        listed, counts = _reordered(listed, counts)
    explanations = tuple(_explanation(group, each) for group, each in zip(listed, counts, strict=True))
    own = search.own().hypothesis
    return Diagnosis(
        explanations=explanations,
        declared=own,
        recipe_assumed=dump.recipe is None,
        layout=dump.layout.spec,
        own=next(each for each in explanations if own in each.members),
        sampled=len(tokens),
        tokens=len(slots),
        tried=search.tried,
        inseparable=inseparable(search.sheet.bench, declared) if dump.producer.startswith(PRODUCER) else (),
    )


class _Search:
    """One dump's tokens, and everything that is tried on them."""

    def __init__(self, dump: Dump, declared: Recipe, tokens: NDArray[np.int64]) -> None:
        self.dump = dump
        self.declared = declared
        bench = Bench(dump, declared, tokens)
        frame = Frame(dump.layout, dump.slot_mapping[tokens], len(dump.pages))
        self.sheet = Sheet(bench, geometries(frame, variants(dump.mode, "layout")))
        self.judge = Judge(self.sheet, dump.layout.order)
        self.sheet.add(Arithmetic(declared))

    def run(self) -> list[Verdict]:
        """The best hypotheses looked at closely, the best one first."""
        for fault, variant in variants(self.dump.mode, "arithmetic", "scale"):
            self.sheet.add(Arithmetic(self.declared, fault, variant, 1))
        for each in rivals(self.declared, self.dump.key.dtype.name):
            self.sheet.add(Arithmetic(each, departures=1))
        best = self._judged()
        if best[0].distance:
            for other in self._nearest_recipes():
                for fault, variant in variants(self.dump.mode, "arithmetic", "scale"):
                    self.sheet.add(Arithmetic(other, fault, variant, 2))
            best = self._judged()
        return best

    @property
    def tried(self) -> int:
        """How many hypotheses were compared with the bytes."""
        return len(self.sheet.arithmetics) * len(self.sheet.geometries)

    def own(self) -> Verdict:
        """What the dump declares."""
        return self.judge.verdict(Candidate(dict.fromkeys(SIDES, Choice(0, 0)), 0, 0), bounds=True)

    def _nearest_recipes(self) -> list[Recipe]:
        costs = self.sheet.costs()
        total = costs["k"].min(axis=1) + costs["v"].min(axis=1)
        plain = [a for a, each in enumerate(self.sheet.arithmetics) if each.fault is None and a]
        return [self.sheet.arithmetics[a].recipe for a in sorted(plain, key=lambda a: int(total[a]))[:_FURTHER]]

    def _judged(self) -> list[Verdict]:
        bounded = 0
        verdicts = []
        for candidate in self._candidates():
            bounds = self.judge.is_approximate(candidate) and candidate.cost >> 32 > 0 and bounded < _BOUNDED
            bounded += bounds
            verdicts.append(self.judge.verdict(candidate, bounds=bounds))
        return sorted(verdicts, key=lambda each: each.rank)

    def _candidates(self) -> list[Candidate]:
        """The hypotheses of the sheet with the least cost, cheapest first; among them some with approximate words."""
        total, picked = self._totals()
        arithmetics, places = self.sheet.arithmetics, self.sheet.geometries
        departures = np.add.outer([each.departures for each in arithmetics], [each.departures for each in places])
        # of equals the plainest, then the first
        order = np.lexsort((np.arange(total.size), departures.reshape(-1), total.reshape(-1)))
        approximate = np.repeat([is_approximate(each.recipe) for each in arithmetics], total.shape[1])
        found: dict[int, Candidate] = {}
        for wanted, most in ((order, _CLOSE), (order[approximate[order]], 2 * _BOUNDED)):
            taken = 0
            for flat in wanted.tolist():
                a, g = divmod(flat, total.shape[1])
                candidate = self._candidate(a, g, picked, int(total[a, g]), int(departures[a, g]))
                if candidate is not None:
                    found[flat] = candidate
                    taken += 1
                if taken == most:
                    break
        return list(found.values())

    def _candidate(
        self, a: int, g: int, picked: dict[Side, NDArray[np.int64]], cost: int, departures: int
    ) -> Candidate | None:
        """The hypothesis of an arithmetic and a geometry; None if no side has one of them, so it is another entry."""
        options = [(a, g), (a, 0), (0, g), (0, 0)]
        choices = {side: self.sheet.plain(side, Choice(*options[int(picked[side][a, g])])) for side in SIDES}
        used = [{each.arithmetic for each in choices.values()}, {each.geometry for each in choices.values()}]
        return Candidate(choices, cost, departures) if a in used[0] and g in used[1] else None

    def _totals(self) -> tuple[NDArray[np.int64], dict[Side, NDArray[np.int64]]]:
        """What each pair of an arithmetic and a geometry costs, and which of the two each side has."""
        costs = self.sheet.costs()
        nothing = np.iinfo(np.int64).max // 4
        coupled = np.array([each.places.coupled or bool(found.contested.ids.size)
                            for each, found in zip(self.sheet.geometries, self.sheet.found, strict=True)])  # fmt: skip
        total = np.zeros(costs["k"].shape, np.int64)
        picked: dict[Side, NDArray[np.int64]] = {}
        for side, table in costs.items():
            options = np.stack([
                table,
                np.where(coupled, nothing, np.broadcast_to(table[:, :1], table.shape)),
                np.broadcast_to(table[:1], table.shape),
                np.where(coupled, nothing, np.broadcast_to(table[:1, :1], table.shape)),
            ])  # fmt: skip
            picked[side] = options.argmin(axis=0)
            total += options.min(axis=0)
        wrong, open_ = total >> 32, total & 0xFFFF_FFFF
        credible = (wrong == 0) & (open_ <= most_open(self.sheet.num_bytes))
        return np.where(credible, open_, (wrong + open_) << 32), picked


def _grouped(verdicts: list[Verdict], own: Verdict) -> list[Group]:
    """Verdicts with the same bytes together, the best first. Of a group the plainest is first."""
    groups: dict[Any, Group] = {}
    for verdict in sorted([own, *verdicts], key=lambda each: each.rank):
        key: Any = (
            verdict.explained.tobytes(),
            verdict.allowance > 0,
            str(verdict.hypothesis) if verdict.wrong else "",
        )
        group = groups.setdefault(key, [])
        if all(each.hypothesis != verdict.hypothesis for each in group):
            group.append(verdict)
    return list(groups.values())


def _listed(groups: list[Group], own: Verdict, most: int) -> list[Group]:
    """The complete groups and the best rival, or the nearest ones; and always what the dump declares."""
    complete = [group for group in groups if not group[0].distance][:most]
    others = [group for group in groups if group[0].distance]
    listed = [*complete, *others[: 1 if complete else most]]
    if any(own.hypothesis == each.hypothesis for group in listed for each in group):
        return listed
    return [*(complete or others[: most - 1]), [own]]


def _reordered(listed: list[Group], counts: list[Counts]) -> tuple[list[Group], list[Counts]]:
    order = sorted(range(len(listed)), key=lambda i: (counts[i].wrong, counts[i].allowance > 0, counts[i].open, i))
    return [listed[i] for i in order], [counts[i] for i in order]


def _explanation(group: Sequence[Verdict], counts: Counts) -> Explanation:
    # a fault that changes nothing here is no news, a recipe that gives the same bytes is
    most = group[0].candidate.departures
    plain = [each for each in group if each.candidate.departures <= most or not each.hypothesis.faults]
    return Explanation(members=tuple(each.hypothesis for each in plain), **counts._asdict())
