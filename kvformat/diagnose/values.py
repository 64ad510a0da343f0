"""Small things done to what a program gives: numbers, intervals and flags with a value for each scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.recipes.intervals import Flag, Interval, Value, points, run
from kvformat.recipes.program import Program, is_constant

Array = NDArray[Any]
Mask = NDArray[np.bool_]


def where(mask: Mask, a: Interval, b: Interval) -> Interval:
    """The one interval where the mask holds, the other one elsewhere."""
    low = np.where(mask, a.low, b.low)
    if a.low is a.high and b.low is b.high:
        return points(low)
    return Interval(low, np.where(mask, a.high, b.high), a.powers and b.powers)


def each_end(value: Value, function: Callable[[Array], Array]) -> Value:
    """A function of both ends; points stay points."""
    if isinstance(value, Flag):
        return Flag(function(value.may_fail), function(value.may_hold))
    low = function(value.low)
    return points(low) if value.low is value.high else Interval(low, function(value.high), value.powers)


def spread(value: Any, shape: Sequence[int]) -> Any:
    """One number for each scale."""
    return each_end(value, lambda end: np.broadcast_to(end, (*shape, 1)))


def moved(value: Value, axis: int, step: int) -> Value:
    """The value `step` entries further along an axis, round and round; with step 0 that of the first entry."""
    if step:
        return each_end(value, lambda end: np.roll(end, -step, axis=axis))
    return each_end(value, lambda end: np.broadcast_to(np.take(end, [0], axis=axis), end.shape))


def expression(text: str, inputs: Mapping[str, Value], *, bounds: bool) -> Interval:
    """What an expression in the words of recipes gives: a call, a name or a constant."""
    if is_constant(text):
        return points(np.full((1, 1, 1), text, np.float32))
    if text in inputs:
        result = inputs[text]
    else:
        nothing = np.zeros((1, 1, 1), np.float32)
        result = run(parsed(f"result = {text}"), inputs, nothing, bounds=bounds)["result"]
    assert isinstance(result, Interval)
    return result


@cache
def parsed(text: str) -> Program:
    """The program of a text, parsed once."""
    return Program.parse(text)
