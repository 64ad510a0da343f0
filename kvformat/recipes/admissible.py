"""The interval reader: which scales and codes a recipe with approximate instructions may give.

An approximate word is known only up to its documented bound (PTX: rcp.approx 1 ulp, div.full and div.approx 2 ulp).
What this reader gives is a superset of what the hardware can give; for a recipe without approximate words it is the
one IEEE result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.recipes import rows
from kvformat.recipes.intervals import (
    Flag,
    Interval,
    Value,
    codes_inside,
    decoded,
    holds,
    kept,
    narrowed,
    points,
    read,
    run,
)
from kvformat.recipes.program import Operation, Program, Recipe
from kvformat.recipes.vocabulary import WORDS

Array = NDArray[Any]
Mask = NDArray[np.bool_]


def is_approximate(recipe: Recipe) -> bool:
    """Whether a recipe has a word whose result is only known up to a bound."""
    programs = (program for level in recipe.levels for program in (level.program, level.error))
    return any(WORDS[operation.word].ulps for program in (*programs, recipe.code) for operation in program.operations)


def within(x: Array, recipe: Recipe, outer: Mapping[str, Value], codes: Array, scales: Array) -> tuple[Mask, Mask]:
    """Which found scales and codes are admissible.

    x: float32 (rows, head_dim). recipe: `for_input` of the dtype that x came in. outer: the per-tensor scales by name,
    from `point` or `outer_scales`. codes: found, uint8 patterns (rows, head_dim). scales: found, as stored (rows,
    columns); no columns where the page holds none. Returns two masks of the shapes of `scales` and `codes`. A code is
    judged with the scale that was found where that one is admissible, as whoever wrote it had no other, and with the
    admissible ones elsewhere: a wrong scale makes no right code wrong.
    """
    inner = recipe.inner
    groups = _grouped(x, recipe, scales)
    patterns = codes.reshape(groups.shape)
    if inner is None:
        good = _codes_hold(recipe, {**outer, "x": points(groups)}, groups, patterns)
        return np.ones(scales.shape, bool), good.reshape(codes.shape)
    each = [_trial(settled, outer, groups, scales[:, :, None], patterns) for settled in recipe.tried()]
    chosen = _may_be_chosen([error for error, _, _ in each])
    held = [taken & scale for taken, (_, scale, _) in zip(chosen, each, strict=True)]
    good_scales = np.any(held, axis=0)
    # where no trial gives the found scale, any that may have been chosen may explain its codes
    may = [own | (taken & ~good_scales) for own, taken in zip(held, chosen, strict=True)]
    good = np.any([allowed & code for allowed, (_, _, code) in zip(may, each, strict=True)], axis=0)
    return good_scales[..., 0], good.reshape(codes.shape)


def codes_by(x: Array, recipe: Recipe, outer: Mapping[str, Value], codes: Array, scales: Array) -> Mask:
    """Which found codes are admissible beside the scales that were found, be those right or wrong; as in `within`."""
    groups = _grouped(x, recipe, scales)
    patterns, level = codes.reshape(groups.shape), recipe.inner
    if level is None:
        return _codes_hold(recipe, {**outer, "x": points(groups)}, groups, patterns).reshape(codes.shape)
    found = scales[:, :, None]
    good = np.zeros(groups.shape, bool)
    for settled in recipe.tried():
        assert settled.inner is not None
        left = run(settled.inner.program, outer, groups)
        known: dict[str, Value] = {**left, "x": points(groups), level.name: points(level.format.values(found))}
        good |= _codes_hold(settled, known, groups, patterns)
    return good.reshape(codes.shape)


def _grouped(x: Array, recipe: Recipe, scales: Array) -> Array:
    """The rows by scale, as the recipe prepares them: (rows, columns, elements)."""
    return rows.prepared(recipe.prepare, x).reshape(len(x), scales.shape[1] if recipe.inner else 1, -1)


def _trial(
    recipe: Recipe, outer: Mapping[str, Value], groups: Array, found: Array, codes: Array
) -> tuple[Interval, Mask, Mask]:
    """One way to compute the scales within a row: its error, and where the found scales and codes hold by it."""
    level = recipe.inner
    assert level is not None
    known: dict[str, Value] = {**run(level.program, outer, groups), "x": points(groups)}
    stored = kept(level, known[level.name])
    good_scales, own = holds(level, found, stored), read(level, stored)
    error = trial_error(recipe, {**known, level.name: own}, groups)
    good_codes = _codes_hold(recipe, {**known, level.name: points(level.format.values(found))}, groups, codes)
    if not good_scales.all():
        by_right = _codes_hold(recipe, {**known, level.name: own}, groups, codes)
        good_codes = np.where(good_scales, good_codes, by_right)
    return error, good_scales, good_codes


def _codes_hold(recipe: Recipe, known: Mapping[str, Value], groups: Array, codes: Array) -> Mask:
    assert recipe.element is not None
    return codes_inside(codes, element(recipe.element), run(recipe.code, known, groups)["c"])


def trial_error(recipe: Recipe, known: Mapping[str, Value], groups: Array, *, bounds: bool = True) -> Interval:
    """The error of a trial, summed in the order of the elements; 0 where a level has one way to arise."""
    level = recipe.inner
    assert level is not None
    total = points(np.zeros((*groups.shape[:-1], 1), np.float32))
    if len(level.trials) == 0:
        return total
    assert recipe.element is not None
    after = run(recipe.code, known, groups, bounds=bounds)
    after["c"] = decoded(after["c"], element(recipe.element))
    terms, sums = _parted(level.error)
    of_elements = run(terms, after, groups, bounds=bounds)
    read = {name for operation in sums.operations for name in operation.operands} & set(of_elements)
    for i in range(groups.shape[-1]):
        values = {name: _element(of_elements[name], i, groups.shape[-1]) for name in read}
        summed = run(sums, {**values, "e": total}, groups, bounds=bounds)["e"]
        assert isinstance(summed, Interval)
        total = summed
    return total


def _parted(error: Program) -> tuple[Program, Program]:
    """What does not read the sum so far, which all elements compute at once, and what goes element by element."""
    # names that hang on the sum, and names that it reads: who assigns one of these again waits as well
    waiting, read = {"e"}, {"e"}
    terms, sums = list[Operation](), list[Operation]()
    for operation in error.operations:
        if waiting.isdisjoint(operation.operands) and operation.target not in waiting | read:
            terms.append(operation)
        else:
            waiting.add(operation.target)
            read.update(operation.operands)
            sums.append(operation)
    return Program(tuple(terms), error.precision), Program(tuple(sums), error.precision)


def _element(value: Value, i: int, count: int) -> Value:
    """The i-th element of a value that each element of a group has; others have one for the group."""
    if isinstance(value, Interval):
        low, high = (end[..., i : i + 1] if end.shape[-1] == count else end for end in (value.low, value.high))
        return points(low) if value.low is value.high else Interval(low, high)
    return Flag(*(end[..., i : i + 1] if end.shape[-1] == count else end for end in (value.may_fail, value.may_hold)))


def _may_be_chosen(errors: list[Interval]) -> list[Mask]:
    """Where each trial may be the first one with the least error: less than all before it, not more than all after."""
    chosen = []
    for i, own in enumerate(errors):
        beats = [own.low < other.high for other in errors[:i]]
        survives = [~(other.high < own.low) for other in errors[i + 1 :]]
        chosen.append(np.all([np.ones(own.low.shape, bool), *beats, *survives], axis=0))
    return chosen


def outer_scales(recipe: Recipe, elements: Array, given: np.float32 | None) -> dict[str, Value]:
    """The per-tensor scales of a recipe by name: the given one, or computed from float32 elements.

    elements: (n,), all of the tensor, or as many of them as have its largest and smallest values, its NaN and its Inf.
    """
    known: dict[str, Value] = {}
    for level in recipe.outer:
        if given is not None and level.may_be_given:
            known[level.name] = point(given)
        else:
            known[level.name] = narrowed(run(level.program, known, elements.reshape(1, 1, -1))[level.name])
    return known


def point(value: np.float32) -> Interval:
    """One known number."""
    return points(np.full((1, 1, 1), value, np.float32))
