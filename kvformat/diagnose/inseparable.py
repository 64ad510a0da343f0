"""What the K and V of a dump cannot tell apart, whatever a kernel makes of them, and why."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.diagnose.bench import Bench
from kvformat.diagnose.catalogue import variants
from kvformat.diagnose.diagnosis import Inseparable
from kvformat.diagnose.edits import edited
from kvformat.diagnose.fault import RIGHT, Variant
from kvformat.recipes.normal import normal
from kvformat.recipes.program import Recipe
from kvformat.verify.identify import SIDES

Member = tuple[str, Variant]

_GIVEN = "the per-tensor scale is given, so how it would be computed does not show"
_ANY_SCALE = "codes do not say which scale was meant: a wrongly recorded per-tensor scale is another scale"
_SAME = "the same operations"
_NOTHING = "no element of these K and V tells them apart"


def inseparable(bench: Bench, how: Recipe) -> tuple[Inseparable, ...]:
    """The groups of arithmetic and scale hypotheses on a recipe that leave the same bytes on both sides."""
    groups: dict[Any, list[Member]] = {}
    for name, variant in _all(how):
        fitted = np.float32(1) if variant.tensor == "?" else None
        made = [bench.rows(side, how, variant, fitted) for side in SIDES]
        if variant.tensor == "?":
            groups.setdefault("any", []).append((name, variant))
        elif all(rows is not None for rows in made):
            groups.setdefault(tuple(rows.digest for rows in made if rows), []).append((name, variant))
    found = []
    for key, group in groups.items():
        if key == "any":
            others = [each for members in groups.values() for each in members if each[1].tensor not in ("", "?")]
            found.append(Inseparable(tuple(name for name, _ in (*group, *others)), _ANY_SCALE))
        elif len(group) > 1:
            found += _explained(bench, how, group)
    return tuple(found)


def _all(how: Recipe) -> list[Member]:
    faults = variants(how.mode, "arithmetic", "scale")
    return [("right", RIGHT), *((f"{fault.id}: {variant.label}", variant) for fault, variant in faults)]


def _explained(bench: Bench, how: Recipe, group: list[Member]) -> list[Inseparable]:
    """The group, by the reason why each of its members is like the first."""
    first = group[0]
    reasons: dict[str, list[str]] = {}
    for member in group[1:]:
        reasons.setdefault(_why(bench, how, first[1], member[1]), []).append(member[0])
    reasons.pop(_SAME, None)  # two names of one thing
    return [Inseparable((first[0], *names), why) for why, names in reasons.items()]


def _why(bench: Bench, how: Recipe, first: Variant, other: Variant) -> str:
    if other.never:
        return other.never
    recipes = [edited(how, each.edit) for each in (first, other)]
    plain = all(recipes)
    if plain and _hooks(first) == _hooks(other) and normal(recipes[0]) == normal(recipes[1]):  # type: ignore[arg-type]
        return _SAME
    if bench.dump.k_scale is not None and _only_outer(how, other):
        return _GIVEN
    return _NOTHING


def _hooks(variant: Variant) -> tuple[Any, ...]:
    return variant.scope, variant.borrow, variant.used, variant.stored, variant.tensor


def _only_outer(how: Recipe, variant: Variant) -> bool:
    """Whether a variant departs only in how a per-tensor scale is computed."""
    if variant.scope in ("both tensors", "written tokens"):
        return True
    other = edited(how, variant.edit)
    if other is None or any(_hooks(variant)):
        return False
    return (other.inner, other.code, other.element) == (how.inner, how.code, how.element) and other.outer != how.outer
