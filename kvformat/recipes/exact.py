"""The slow twin of the engine: runs a recipe's program in exact fractions, rounding where the program says.

It shares the program and nothing else with the Numba engine. IEEE 754-2019 is written out here from its definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements import exact
from kvformat.elements.exact import BINARIES, NAN, Binary, Number, infinity, number
from kvformat.elements.formats import element
from kvformat.recipes.exact_rows import prepared
from kvformat.recipes.program import Level, Operation, Program, Recipe, is_constant
from kvformat.recipes.vocabulary import WORDS

Value = Number | bool | int

_ZERO = number(0)


def evaluate(
    program: Program, inputs: Mapping[str, Value], group: Sequence[Number] = (), *, rounding: bool = True
) -> dict[str, Value]:
    """The value of every name after the program. A code is the unsigned pattern.

    group: the elements that share the scale, for reductions. rounding: False runs a float32 program on real numbers,
    which shows what its roundings cost.
    """
    values: dict[str, Value] = dict(inputs)
    binary = BINARIES.get(program.precision) if rounding else None
    for operation in (*program.reductions, *program.steps):
        if WORDS[operation.word].reduces:
            values[operation.target] = _REDUCTIONS[operation.word](group)
            continue
        operands = [_operand(text, values, binary) for text in operation.operands]
        result = _apply(operation, operands)
        values[operation.target] = (
            exact.round_binary(result, binary) if binary and isinstance(result, Number) else result
        )
    return values


def _operand(text: str, values: Mapping[str, Value], binary: Binary | None) -> Value:
    if text in values or not is_constant(text):
        return values[text]
    constant = number(float(text)) if text.strip("-") in ("nan", "inf") else number(Fraction(text))
    return exact.round_binary(constant, binary) if binary else constant


def _rounded(x: Number) -> Number:
    return exact.round_binary(x, BINARIES["float32"])


def _apply(operation: Operation, operands: list[Any]) -> Value:
    if operation.word == "encode":
        fmt, *policy = operation.attributes
        directions = [word for word in policy if word not in ("saturate", "ieee")]
        overflow = "ieee" if "ieee" in policy else "saturate"
        return exact.encode(operands[0], fmt, overflow=overflow, rounding=(directions or ["nearest_even"])[0])
    if operation.word in _DIRECTED:
        return _DIRECTED[operation.word](*operation.attributes)(*operands)
    if "ftz" in operation.attributes:
        result = _MEANINGS[operation.word](*map(_flush, operands))
        assert isinstance(result, Number)
        return _flush(_rounded(result))
    return _MEANINGS[operation.word](*operands)


# --- IEEE 754 arithmetic before rounding ---------------------------------------------------------------------------


def _add(a: Number, b: Number) -> Number:
    if a.nan or b.nan or (not a.finite and not b.finite and a.negative != b.negative):
        return NAN
    if not a.finite or not b.finite:
        return a if not a.finite else b
    total = a.value + b.value
    # an exact zero sum is +0, except that of two negative zeros (section 6.3)
    return Number(total < 0 or (total == 0 and a.negative and b.negative), abs(total))


def _neg(a: Number) -> Number:
    return Number(not a.negative, a.magnitude, a.nan)


def _mul(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if a.nan or b.nan:
        return NAN
    if a.magnitude is None or b.magnitude is None:
        return NAN if 0 in (a.magnitude, b.magnitude) else infinity(negative)
    return Number(negative, a.magnitude * b.magnitude)


def _div(a: Number, b: Number) -> Number:
    negative = a.negative != b.negative
    if a.nan or b.nan:
        return NAN
    if a.magnitude is None:
        return NAN if b.magnitude is None else infinity(negative)
    if b.magnitude is None:
        return Number(negative, Fraction(0))
    if b.magnitude == 0:
        return NAN if a.magnitude == 0 else infinity(negative)
    return Number(negative, a.magnitude / b.magnitude)


def _order(a: Number) -> tuple[Any, ...]:
    # -Inf < negative numbers < -0 < +0 < positive numbers < Inf
    if a.magnitude is None:
        return (-1 if a.negative else 1, Fraction(0), 0)
    return (0, a.value, 0 if a.negative else 1)


def _larger(a: Number, b: Number) -> Number:
    return a if _order(a) >= _order(b) else b


def _smaller(a: Number, b: Number) -> Number:
    return a if _order(a) <= _order(b) else b


def _propagating(choose: Callable[[Number, Number], Number]) -> Callable[[Number, Number], Number]:
    return lambda a, b: NAN if a.nan or b.nan else choose(a, b)


def _giving_way(choose: Callable[[Number, Number], Number]) -> Callable[[Number, Number], Number]:
    return lambda a, b: b if a.nan else a if b.nan else choose(a, b)


def _less(a: Number, b: Number) -> bool:
    return not (a.nan or b.nan) and _order(a)[:2] < _order(b)[:2]


def _equal(a: Number, b: Number) -> bool:
    return not (a.nan or b.nan) and _order(a)[:2] == _order(b)[:2]


def _clamp(a: Number, low: Number, high: Number) -> Number:
    return low if _less(a, low) else high if _less(high, a) else a


_MEANINGS: dict[str, Callable[..., Value]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _neg(b)),
    "mul": _mul,
    "div": _div,
    "rcp": lambda a: _div(number(1), a),
    "fma": lambda a, b, c: _add(_mul(a, b), c),
    "rcp_approx": lambda a: _div(number(1), a),
    "div_approx": _div,
    "div_full": _div,
    "neg": _neg,
    "abs": lambda a: Number(False, a.magnitude, a.nan),
    "copysign": lambda a, b: Number(b.negative, a.magnitude, a.nan),
    "max": _propagating(_larger),
    "min": _propagating(_smaller),
    "max_number": _giving_way(_larger),
    "min_number": _giving_way(_smaller),
    "clamp": _clamp,
    "eq": _equal,
    "ne": lambda a, b: not _equal(a, b),
    "lt": _less,
    "le": lambda a, b: _less(a, b) or _equal(a, b),
    "isnan": lambda a: a.nan,
    "isinf": lambda a: not a.finite and not a.nan,
    "select": lambda flag, a, b: a if flag else b,
    "flush": lambda a: _flush(a),
}


def _integral(choose: Callable[[Fraction, bool], int]) -> Callable[[Number], Number]:
    def rounded(a: Number) -> Number:
        return a if a.magnitude is None else Number(a.negative, Fraction(choose(a.magnitude, a.negative)))

    return rounded


def _floor(size: Fraction) -> int:
    return size.numerator // size.denominator


_ROUND: dict[str, Callable[[Number], Number]] = {
    "half_even": _integral(lambda size, negative: round(size)),
    "half_away": _integral(lambda size, negative: _floor(size + Fraction(1, 2))),
    "toward_zero": _integral(lambda size, negative: _floor(size)),
    "up": _integral(lambda size, negative: _floor(size) if negative else -_floor(-size)),
    "down": _integral(lambda size, negative: -_floor(-size) if negative else _floor(size)),
}


def _flush(a: Number) -> Number:
    """Subnormal binary32 numbers as zeros of their sign."""
    small = a.magnitude is not None and a.magnitude < Fraction(1, 2**126)
    return Number(a.negative, Fraction(0)) if small else a


def _last_place(a: Number) -> Fraction:
    """The unit in the last place of a binary32 number; its multiples count the patterns within a binade."""
    assert a.magnitude is not None
    unit = Fraction(1, 2**149)
    while a.magnitude >= unit * 2**24:
        unit *= 2
    return unit


def _low_bits(a: Number, below: int) -> Number:
    return _ZERO if a.magnitude is None else number(a.magnitude / _last_place(a) % below)


def _splice(a: Number, b: Number, below: int) -> Number:
    fits = b.magnitude is not None and 0 <= b.value <= below - 1
    integer = _floor(b.value) if fits else 0
    if a.magnitude is None:  # the pattern of Inf with another low part is a NaN
        return NAN if integer else a
    return Number(a.negative, a.magnitude + (integer - _low_bits(a, below).value) * _last_place(a))


def _pow2(direction: str) -> Callable[[Number], Number]:
    def power(a: Number) -> Number:
        if not a.magnitude:
            return Number(False, a.magnitude, a.nan)
        below = Fraction(1)
        while below > a.magnitude:
            below /= 2
        while below * 2 <= a.magnitude:
            below *= 2
        return number(below if direction == "down" or below == a.magnitude else below * 2)

    return power


def _pow2_approx(a: Number, kept: str) -> Number:
    if not a.magnitude:
        return Number(False, a.magnitude, a.nan)
    # 60 digits: far closer than any logarithm of a float is to the middle between two binary32 numbers
    with localcontext(prec=60):
        size = Decimal(a.magnitude.numerator) / Decimal(a.magnitude.denominator)
        logarithm = Fraction(size.ln() / Decimal(2).ln())
    exponent = -_floor(-exact.round_binary(_rounded(number(logarithm)), BINARIES[kept]).value)
    return number(Fraction(2) ** exponent)


#: words that an attribute gives their meaning
_DIRECTED: dict[str, Callable[..., Callable[..., Number]]] = {
    "round": _ROUND.__getitem__,
    "pow2": _pow2,
    "pow2_approx": lambda direction, kept="float32": lambda a: _pow2_approx(a, kept),
    "to": lambda name: lambda a: exact.round_binary(a, BINARIES[name]),
    "splice": lambda bits: lambda a, b: _splice(a, b, 2 ** int(bits)),
    "low_bits": lambda bits: lambda a: _low_bits(a, 2 ** int(bits)),
}


def _largest(magnitudes: Sequence[Fraction]) -> Number:
    return number(max(magnitudes, default=Fraction(0)))


def _amax_number(group: Sequence[Number]) -> Number:
    if any(not x.finite and not x.nan for x in group):
        return infinity(negative=False)
    return _amax_finite(group)


def _extreme(group: Sequence[Number], choose: Callable[[Number, Number], Number]) -> Number:
    found = reduce(choose, [x for x in group if not x.nan] or [_ZERO])
    return _ZERO if found.magnitude == 0 else found


def _amax_finite(group: Sequence[Number]) -> Number:
    return _largest([x.magnitude for x in group if x.magnitude is not None])


_REDUCTIONS: dict[str, Callable[[Sequence[Number]], Value]] = {
    "amax_finite": _amax_finite,
    "amax_number": _amax_number,
    "amax": lambda group: NAN if any(x.nan for x in group) else _amax_number(group),
    "any_nan": lambda group: any(x.nan for x in group),
    "largest": lambda group: _extreme(group, _larger),
    "smallest": lambda group: _extreme(group, _smaller),
}


# --- whole recipes -------------------------------------------------------------------------------------------------


def stored(level: Level, value: Number) -> tuple[int | Number, Number]:
    """A scale as it is stored (its code, or the number for float32) and the value that is then read."""
    if level.store == "float32":
        return _rounded(value), _rounded(value)
    code = _apply(level.storing, [value])
    assert isinstance(code, int)
    return code, exact.decode(code, level.storing.attributes[0])


def quantize(
    x: NDArray[Any], recipe: Recipe, scale: float | None = None
) -> tuple[NDArray[Any], NDArray[Any], np.float32]:
    """Codes, scales and global scale as `kvformat.quantize` gives them, one element at a time (10,000 a second)."""
    recipe = recipe.for_input(x.dtype.name)
    tokens, heads, dims = x.shape
    elements: Any = np.array([number(float(each)) for each in x.reshape(-1)], object).reshape(x.shape)
    elements = prepared(recipe.prepare, elements, lambda a, b: _rounded(_add(a, b)))
    scales: dict[str, Any] = {}
    last: NDArray[Any] = np.zeros(0, np.float32)
    around: Any = np.empty(x.shape, object)
    around[...] = [[[{} for _ in range(dims)] for _ in range(heads)] for _ in range(tokens)]
    for level in recipe.levels:
        given = scale if level.may_be_given else None
        last, scales[level.name] = _level(recipe, level, elements, around, given)
    codes = np.empty(x.shape, np.uint8)
    for place in np.ndindex(*x.shape):
        code = evaluate(recipe.code, {**around[place], "x": elements[place]})["c"]
        assert isinstance(code, int)
        codes[place] = code
    assert recipe.element is not None
    target = element(recipe.element)
    outer = recipe.outer[-1] if recipe.outer and recipe.inner else None
    shared = np.float32(1) if outer is None else np.float32(float(scales[outer.name]))
    if target.signed_integer:  # sign-extended
        codes = np.where(codes < target.sign_bit, codes, codes.astype(int) - target.codes).astype(np.int8)
    return codes, last, shared


def _level(
    recipe: Recipe, level: Level, elements: Any, around: Any, given: float | None
) -> tuple[NDArray[Any], Number]:
    tokens, heads, dims = elements.shape
    share = level.granularity
    width = share.dims or dims
    grid = (1 if share.shares_tokens else tokens, 1 if share.shares_heads else heads, dims // width)
    kept = np.empty(grid, np.float32 if level.store == "float32" else np.uint8)
    value = _ZERO
    for token, head, column in np.ndindex(*grid):
        region = (
            slice(None) if share.shares_tokens else slice(token, token + 1),
            slice(None) if share.shares_heads else slice(head, head + 1),
            slice(None) if not share.within_row else slice(column * width, column * width + width),
        )
        group = list(elements[region].reshape(-1))
        if given is None:
            values = _computed(recipe, level, around[region].reshape(-1)[0], group)
        else:
            values = {level.name: _rounded(number(float(given)))}
        computed = values[level.name]
        assert isinstance(computed, Number)
        code, value = stored(level, computed)
        kept[token, head, column] = float(code) if isinstance(code, Number) else code
        for names in around[region].reshape(-1):
            names.update(values if share.within_row else {})
            names[level.name] = value
    if not share.within_row:
        return kept.reshape(-1), value
    return kept if share.dims else kept[:, :, 0], value


def _computed(recipe: Recipe, level: Level, names: Mapping[str, Value], group: list[Number]) -> dict[str, Value]:
    """What the program of a level gives; of several trials, the first one with the least error."""
    if not level.trials:
        return evaluate(level.program, names, group)
    best: dict[str, Value] = {}
    least = NAN
    for trial in level.trials:
        values = evaluate(level.program, {**names, "trial": number(Fraction(trial))}, group)
        error = _error(recipe, level, {**names, **values}, group)
        if not best or _less(error, least):
            best, least = values, error
    return best


def _error(recipe: Recipe, level: Level, names: Mapping[str, Value], group: list[Number]) -> Number:
    assert recipe.element is not None
    computed, total = names[level.name], _ZERO
    assert isinstance(computed, Number)
    for x in group:
        after = evaluate(recipe.code, {**names, level.name: stored(level, computed)[1], "x": x})
        code = after["c"]
        assert isinstance(code, int)
        found = evaluate(level.error, {**after, "c": exact.decode(code, recipe.element), "e": total})["e"]
        assert isinstance(found, Number)
        total = found
    return total


def dequantize(code: int, scales: Mapping[str, Number], recipe: Recipe) -> Number:
    """The number that one code (an unsigned pattern) stands for, with the values of its scales by name."""
    assert recipe.element is not None
    value = evaluate(recipe.value, {**scales, "c": exact.decode(code, recipe.element)})["v"]
    assert isinstance(value, Number)
    return value
