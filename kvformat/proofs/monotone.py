"""Whether the magnitude of a code falls as its scale grows: a check of directions, word by word.

Of one x and growing s > 0 every number has a magnitude that grows, falls or stays. A product of two that go one way
goes that way, a quotient the way of its numerator where the divisor goes the other; rounding keeps order, strict or
not. Where each word of a program has a rule and the code falls, it changes at as many scales as there are codes at
most, and what lies between two of them needs no look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvformat.recipes.program import Operation, Program, is_constant

#: of a magnitude, as the scale grows: 1 it grows, -1 it falls, 0 it stays
Direction = int


class MixedError(ValueError):
    """An operation whose magnitude may go both ways."""


def _together(first: Direction, second: Direction) -> Direction:
    if first * second < 0:
        raise MixedError
    return first or second


def _kept(first: Direction, *_: Direction) -> Direction:
    return first


#: what a flag that no input of the domain raises stands for: of normal numbers, far from both ends, nothing is NaN
_NEVER = 2

_RULES: Mapping[str, Callable[..., Direction]] = MappingProxyType(
    {
        "isnan": lambda _: _NEVER,
        "mul": _together,
        "div": lambda a, b: _together(a, -b),
        "rcp": lambda a: -a,
        **dict.fromkeys(("to", "round", "flush", "encode", "abs", "neg"), _kept),
    }
)
#: words that hold a number between bounds: order is kept where 0 is not cut off
_BOUNDS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"clamp": (-1, 1), "max": (-1,), "max_number": (-1,), "min": (1,), "min_number": (1,)}
)


def why_not(code: Program, scale: str) -> str:
    """Why the magnitude of the code need not fall as the scale grows, in words; "" where it does."""
    directions: dict[str, Direction] = {"x": 0, scale: 1}
    for operation in code.operations:
        try:
            directions[operation.target] = _direction(operation, directions)
        except MixedError:
            return f"'{operation}' may go both ways as {scale} grows"
        except KeyError:
            return f"'{operation}' has no rule of order"
    return "" if directions["c"] <= 0 else f"the code grows with {scale}"


def _direction(operation: Operation, directions: Mapping[str, Direction]) -> Direction:
    if operation.word in _BOUNDS:
        number, *bounds = operation.operands
        for bound, sign in zip(bounds, _BOUNDS[operation.word], strict=True):
            if not is_constant(bound) or float(bound) * sign < 0:
                raise MixedError
        return directions[number]
    if operation.word == "select" and directions.get(operation.operands[0]) == _NEVER:
        other = operation.operands[2]
        return 0 if is_constant(other) else directions[other]
    known = [0 if is_constant(each) else directions[each] for each in operation.operands]
    return _RULES[operation.word](*known)
