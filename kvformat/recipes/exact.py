"""The slow twin of the engine: runs a recipe's program in exact fractions, rounding where the program says.

It shares the program and nothing else with the Numba engine. IEEE 754-2019 is written out here from its definitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.elements import exact
from kvformat.elements.exact import BINARIES, NAN, Binary, Number, infinity, number
from kvformat.elements.formats import element
from kvformat.recipes.exact_rows import prepared
from kvformat.recipes.program import Level, Operation, Program, Recipe, is_constant
from kvformat.recipes.vocabulary import AXES, WORDS, Granularity

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
            values[operation.target] = _reduced(operation, group)
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
    "cast_int32": lambda a: _cast_int32(a),
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


def _cast_int32(a: Number) -> Number:
    if a.magnitude is None or not -(2**31) <= a.value < 2**31:
        return number(Fraction(-(2**31)))
    return number(Fraction(_floor(a.magnitude) * (-1 if a.negative else 1)))


def _wrap(a: Number, bits: int) -> Number:
    if a.magnitude is None:
        return _ZERO
    return number((a.value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1))


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
    "wrap": lambda bits: lambda a: _wrap(a, int(bits)),
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


def _signed_amax(group: Sequence[Number]) -> Number:
    found = _ZERO
    for x in group:
        if _less(Number(False, found.magnitude, found.nan), Number(False, x.magnitude, x.nan)):
            found = x
    return found


def _from(start: str, better: Callable[[Number, Number], bool]) -> Callable[[Sequence[Number]], Number]:
    def found(group: Sequence[Number]) -> Number:
        kept = exact.round_binary(number(float(start)), BINARIES["float32"])
        for x in group:
            kept = x if better(x, kept) else kept
        return kept

    return found


def _sum(order: str, squares: bool) -> Callable[[Sequence[Number]], Number]:
    lanes = 1 if order == "sequential" else int(order.removeprefix("lanes_"))

    def total(group: Sequence[Number]) -> Number:
        sums = [_ZERO] * lanes
        for index, x in enumerate(group):
            sums[index % lanes] = _rounded(_add(sums[index % lanes], _rounded(_mul(x, x)) if squares else x))
        while len(sums) > 1:
            half = len(sums) // 2
            sums = [_rounded(_add(low, high)) for low, high in zip(sums[:half], sums[half:], strict=True)]
        return sums[0]

    return total


def _reduced(operation: Operation, group: Sequence[Number]) -> Value:
    if operation.attributes:
        return _ATTRIBUTED[operation.word](*operation.attributes)(group)
    return _REDUCTIONS[operation.word](group)


#: reductions that an attribute gives their meaning
_ATTRIBUTED: dict[str, Callable[..., Callable[[Sequence[Number]], Number]]] = {
    "max_from": lambda start: _from(start, lambda x, kept: _less(kept, x)),
    "min_from": lambda start: _from(start, _less),
    "sum": lambda order: _sum(order, squares=False),
    "sum_squares": lambda order: _sum(order, squares=True),
}

_REDUCTIONS: dict[str, Callable[[Sequence[Number]], Value]] = {
    "signed_amax": _signed_amax,
    "amax_finite": _amax_finite,
    "amax_number": _amax_number,
    "amax": lambda group: NAN if any(x.nan for x in group) else _amax_number(group),
    "any_nan": lambda group: any(x.nan for x in group),
    "all_nan": lambda group: all(x.nan for x in group),
    "largest": lambda group: _extreme(group, _larger),
    "smallest": lambda group: _extreme(group, _smaller),
}


# --- whole recipes -------------------------------------------------------------------------------------------------


def stored(level: Level, value: Number) -> tuple[int | Number, Number]:
    """A parameter as it is stored (its code, or the number for a float) and the value that is then read."""
    store = level.format
    if store.is_float:
        kept = exact.round_binary(value, BINARIES[store.name])
        return kept, kept
    code = _apply(level.storing, [value])
    assert isinstance(code, int)
    return code, exact.decode(code, store.name)


class Exact(NamedTuple):
    """What a recipe gives, one element at a time."""

    codes: NDArray[Any]
    #: stored parameters by name, in their block shape
    params: dict[str, NDArray[Any]]
    undefined: NDArray[np.bool_] | None


def quantize(
    x: NDArray[Any], recipe: Recipe, scale: float | None = None
) -> tuple[NDArray[Any], NDArray[Any], np.float32]:
    """Codes, scales and global scale as `kvformat.quantize` gives them, one element at a time (10,000 a second)."""
    takes = [level.name for level in recipe.levels if level.may_be_given][:1]  # a recipe without one has no use for it
    given = {name: scale for name in takes if scale is not None}
    made = quantize_all(x, recipe, given)
    tokens, heads, _ = x.shape
    if recipe.inner is None:
        last = made.params[recipe.levels[-1].name] if recipe.levels else np.zeros(0, np.float32)
        return made.codes, last.reshape(-1), np.float32(1)
    inner, share = made.params[recipe.inner.name], recipe.inner.granularity
    outer = [made.params[level.name] for level in recipe.outer]
    shared = np.float32(outer[-1].reshape(-1)[0]) if outer else np.float32(1)
    return made.codes, inner.reshape(tokens, heads) if share.within_row and not share.dims else inner, shared


def quantize_all(x: NDArray[Any], recipe: Recipe, given: Mapping[str, Any] | None = None) -> Exact:
    """Codes, every parameter and undefined groups; given: parameters by name, numbers or arrays in block shape."""
    recipe = recipe.for_input(x.dtype.name)
    elements: Any = np.array([number(float(each)) for each in x.reshape(-1)], object).reshape(x.shape)
    elements = prepared(recipe.prepare, elements, lambda a, b: _rounded(_add(a, b)))
    around: Any = np.empty(x.shape, object)
    for place in np.ndindex(*x.shape):
        around[place] = {}
    params = {
        level.name: _level(recipe, level, elements, around, (given or {}).get(level.name))
        for level in recipe.levels
        if not level.after
    }
    codes = np.empty(x.shape, np.uint8)
    coded: Any = np.empty(x.shape, object)
    for place in np.ndindex(*x.shape):
        coded[place] = evaluate(recipe.code, {**around[place], "x": elements[place]})
        codes[place] = coded[place]["c"]
    params |= {level.name: _from_codes(recipe, level, around, coded) for level in recipe.after}
    assert recipe.element is not None
    target = element(recipe.element)
    if target.code_dtype == "int8":  # sign-extended
        codes = np.where(codes < target.sign_bit, codes, codes.astype(int) - target.codes).astype(np.int8)
    undefined = None
    if recipe.undefined:
        assert recipe.share is not None
        shape, groups = _groups(recipe.share, x.shape)
        undefined = np.array([around[places[0]][recipe.undefined] for places in groups], bool).reshape(shape)
    return Exact(codes, params, undefined)


def _groups(share: Granularity, shape: tuple[int, ...]) -> tuple[tuple[int, ...], list[list[tuple[int, ...]]]]:
    """The block shape of a granularity's parameters, and the places of each group's elements, in order."""
    if share.order:
        axes = [AXES.index(axis) for axis in share.order]
        walk = product(*(range(shape[axis]) for axis in axes))
        places = [tuple(place[axes.index(axis)] for axis in range(3)) for place in walk]
        runs = [places[start : start + share.run] for start in range(0, len(places), share.run)]
        return (len(runs),), runs
    wide = [width or count for width, count in zip(share.block, shape, strict=True)]
    found: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for place in np.ndindex(*shape):
        found.setdefault(tuple(at // width for at, width in zip(place, wide, strict=True)), []).append(place)
    counts = tuple(max(group[axis] for group in found) + 1 for axis in range(3))
    return counts, [found[group] for group in np.ndindex(*counts)]


def _level(recipe: Recipe, level: Level, elements: Any, around: Any, given: Any) -> NDArray[Any]:
    """The stored parameters of a level in their block shape; every element learns what covers it."""
    shape, groups = _groups(level.granularity, elements.shape)
    kept = np.empty(len(groups), level.format.dtype)
    numbers = None if given is None else np.broadcast_to(np.asarray(given), shape).reshape(-1)
    within = level in recipe.group
    for index, places in enumerate(groups):
        group = [elements[place] for place in places]
        if numbers is None:
            values = _computed(recipe, level, around[places[0]], group)
        else:
            values = {level.name: _rounded(number(float(numbers[index])))}
        computed = values[level.name]
        assert isinstance(computed, Number)
        kept[index], value = _kept(level, computed)
        for place in places:
            around[place].update(values if within else {})
            around[place][level.name] = value
    return kept.reshape(shape)


def _kept(level: Level, computed: Number) -> tuple[Any, Number]:
    """A parameter as an array holds it, and its value."""
    code, value = stored(level, computed)
    if isinstance(code, Number):
        return float(code), value
    fmt = level.format.element
    negative = fmt is not None and fmt.code_dtype == "int8" and code >= fmt.sign_bit
    return code - fmt.codes if fmt is not None and negative else code, value


def _from_codes(recipe: Recipe, level: Level, around: Any, coded: Any) -> NDArray[Any]:
    """The stored parameters of a level that is made from the codes, in their block shape."""
    assert recipe.element is not None
    shape, groups = _groups(level.granularity, coded.shape)
    kept = np.empty(len(groups), level.format.dtype)
    for index, places in enumerate(groups):
        totals: dict[str, Value] = dict.fromkeys(level.totals, _ZERO)
        for place in places:
            names = {**coded[place], "c": exact.decode(coded[place]["c"], recipe.element), **totals}
            after = evaluate(level.sums, names)
            totals = {name: after[name] for name in level.totals}
        computed = evaluate(level.program, {**around[places[0]], **totals})[level.name]
        assert isinstance(computed, Number)
        kept[index], _ = _kept(level, computed)
    return kept.reshape(shape)


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
