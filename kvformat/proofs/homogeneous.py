"""Whether a code depends on x and its scale only through their ratio: a check of degrees, as physicists check units.

x and the scale have degree 1, a number has degree 0. mul adds degrees, div subtracts them, comparing and adding need
equal ones, and what is rounded to a code must have degree 0. A program that passes gives the same code for (x, s) and
for (2^k x, 2^k s): every operation is exact in powers of two, as long as no intermediate is subnormal or overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvformat.recipes.program import Operation, Program, is_constant

#: the degree of a number that is 0, Inf or NaN, which scaling does not change: it goes with any other
_ANY = None
Degree = int | None


class MixedError(ValueError):
    """An operation on numbers of different degrees; its text says which."""


def _same(*degrees: Degree) -> Degree:
    definite = {degree for degree in degrees if degree is not _ANY}
    if len(definite) > 1:
        raise MixedError
    return next(iter(definite), _ANY)


def _sum(first: Degree, second: Degree) -> Degree:
    return _ANY if first is _ANY or second is _ANY else first + second


def _none(*degrees: Degree) -> Degree:
    """Of a word that reads the size of its operand: it must be a plain number."""
    if any(degree not in (_ANY, 0) for degree in degrees):
        raise MixedError
    return 0


def _negative(degree: Degree) -> Degree:
    return _ANY if degree is _ANY else -degree


_RULES: Mapping[str, Callable[..., Degree]] = MappingProxyType(
    {
        "mul": _sum,
        "div": lambda a, b: _sum(a, _negative(b)),
        "rcp": _negative,
        "fma": lambda a, b, c: _same(_sum(a, b), c),
        "neg": lambda a: a,
        "abs": lambda a: a,
        "copysign": lambda a, _b: a,
        "pow2": lambda a, *_: a,
        "select": lambda _flag, a, b: _same(a, b),
        **dict.fromkeys(("add", "sub", "max", "min", "max_number", "min_number", "clamp"), _same),
        "flush": lambda a: a,  # no number of the domain is subnormal
        **dict.fromkeys(("round", "encode"), _none),
    }
)
#: words that give a flag from numbers of one degree, or from any number
_FLAGS = frozenset({"eq", "ne", "lt", "le", "isnan", "isinf"})


def why_not(code: Program, scale: str) -> str:
    """Why the code depends on more than x / scale, in words; "" where it does not."""
    degrees: dict[str, Degree] = {"x": 1, scale: 1}
    for operation in code.operations:
        try:
            degrees[operation.target] = _degree(operation, degrees)
        except MixedError:
            return f"'{operation}' mixes x or the scale with a number"
        except KeyError:
            return f"'{operation}' reads the bits of its operand"
    return ""


def _degree(operation: Operation, degrees: Mapping[str, Degree]) -> Degree:
    operands = [_constant(each) if is_constant(each) else degrees[each] for each in operation.operands]
    if operation.word == "to":  # bfloat16 has the exponents of binary32, float16 has fewer
        return _same(*operands) if operation.attributes[0] != "float16" else _none(*operands)
    if operation.word in _FLAGS:
        _same(*operands)
        return _ANY
    return _RULES[operation.word](*operands)


def _constant(text: str) -> Degree:
    return 0 if float(text) * 0 == 0 and float(text) != 0 else _ANY
