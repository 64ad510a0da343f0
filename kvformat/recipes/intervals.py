"""Words on intervals: what a program gives when some of its operations are known only up to a bound.

Every operation is monotone in each operand, so the ends of the result are among the results for the ends of the
operands; plain NumPy, element by element, but for `fma`, which is the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.codec import encode_by
from kvformat.elements.formats import BINARIES, ElementFormat
from kvformat.recipes.program import Level, Operation, Program, is_constant
from kvformat.recipes.vocabulary import WORDS
from kvformat.recipes.words import encode_policy, fuse

Array = NDArray[Any]


@dataclass(frozen=True)
class Interval:
    """All numbers from low to high, element by element; where an end is NaN, so is the value."""

    low: Array
    high: Array
    #: of these only the powers of two, 0, Inf and NaN: what `pow2_approx` gives, 2^e or 2^(e+1) and nothing between
    powers: bool = False


@dataclass(frozen=True)
class Flag:
    """Whether a condition can be false and whether it can be true, element by element."""

    may_fail: Array
    may_hold: Array


Value = Interval | Flag


def run(program: Program, inputs: Mapping[str, Value], groups: Array, *, bounds: bool = True) -> dict[str, Value]:
    """The interval or flag of every name after the program; a code is an interval of ordered keys.

    groups: float32 (..., elements that share a scale), for reductions, which keep the last axis with length 1.
    bounds: False gives the IEEE result of approximate words, as the engine does, and intervals are points.
    """
    dtype = np.float64 if program.precision in ("float64", "real") else np.float32
    narrow = _DIRECTED["to"].get(program.precision) if program.precision in BINARIES else None
    values: dict[str, Value] = dict(inputs)
    with np.errstate(all="ignore"):
        for operation in (*program.reductions, *program.steps):
            if WORDS[operation.word].reduces:
                values[operation.target] = _REDUCTIONS[operation.word](groups, *operation.attributes)
                continue
            operands = [_operand(text, values, dtype) for text in operation.operands]
            if narrow is not None:
                operands = [
                    _each_end(narrow, each) if isinstance(each, Interval) and text not in values else each
                    for text, each in zip(operation.operands, operands, strict=True)
                ]
            result = _apply(operation, operands, bounds=bounds)
            if narrow is not None and isinstance(result, Interval) and WORDS[operation.word].result == "number":
                result = _each_end(narrow, result)
            values[operation.target] = result
    return values


def points(values: Array) -> Interval:
    """Known numbers."""
    return Interval(values, values)


def _operand(text: str, values: Mapping[str, Value], dtype: Any) -> Value:
    if text not in values and is_constant(text):
        return _constant(text, dtype)
    value = values[text]
    return value if isinstance(value, Flag) else _typed(value, dtype)


@cache
def _constant(text: str, dtype: Any) -> Interval:
    return points(np.full((1, 1, 1), dtype(text)))


def _typed(value: Interval, dtype: Any) -> Interval:
    return _each_end(lambda end: end.astype(dtype, copy=False), value)


def _each_end(function: Callable[[Array], Array], value: Interval) -> Interval:
    """A function of both ends; one array stays one, which is how points are told from intervals, at half the work."""
    low = function(value.low)
    return Interval(low, low if value.low is value.high else function(value.high), value.powers)


def narrowed(value: Value) -> Interval:
    """The interval as it is stored in float32."""
    assert isinstance(value, Interval)
    return _typed(value, np.float32)


def inside(found: Array, allowed: Interval) -> NDArray[np.bool_]:
    """Which found numbers lie in their intervals; NaN lies where NaN is the value."""
    nan = np.isnan(allowed.low) | np.isnan(allowed.high)
    between = (allowed.low <= found) & (found <= allowed.high)
    if allowed.powers:
        between &= _is_power(found)
    return np.where(nan, np.isnan(found), between)


def _is_power(values: Array) -> NDArray[np.bool_]:
    """Where a number is a power of two, 0, Inf or NaN."""
    powers: NDArray[np.bool_] = (np.frexp(np.abs(values))[0] == 0.5) | (values == 0) | ~np.isfinite(values)
    return powers


# --- parameters as they are stored ---------------------------------------------------------------------------------


def kept(level: Level, value: Value) -> Interval:
    """A parameter as it is stored: an interval of floats of the store format, or of keys of its codes."""
    if level.format.element is not None:
        return encoded(level.storing, value)
    assert isinstance(value, Interval)
    with np.errstate(over="ignore"):
        return _each_end(lambda end: end.astype(level.format.dtype).astype(np.float32), value)


def read(level: Level, stored: Value) -> Interval:
    """The values of what `kept` gives."""
    if level.format.element is not None:
        return decoded(stored, level.format.element)
    assert isinstance(stored, Interval)
    return stored


def written(level: Level, stored: Value) -> Array:
    """What `kept` gives, points, as arrays of stored parameters hold it."""
    assert isinstance(stored, Interval)
    if level.format.element is not None:
        return patterns(stored, level.format.element).view(level.format.dtype)
    return stored.low.astype(level.format.dtype)


def holds(level: Level, found: Array, allowed: Interval) -> NDArray[np.bool_]:
    """Which found stored parameters lie in what `kept` gives."""
    if level.format.element is not None:
        return codes_inside(found.view(np.uint8), level.format.element, allowed)
    return inside(found.astype(np.float32), allowed)


# --- codes, in the order of their values ---------------------------------------------------------------------------


def _keys(codes: Array, fmt: ElementFormat) -> NDArray[np.int64]:
    """Codes as integers in the order of their values, -0 directly below +0."""
    keys: NDArray[np.int64] = _key_table(fmt)[codes.astype(np.uint8, copy=False)]
    return keys


@cache
def _key_table(fmt: ElementFormat) -> NDArray[np.int64]:
    """Keys by all the patterns of a byte; bits beyond a code's count for nothing."""
    patterns = np.arange(256) & (fmt.codes - 1)
    if not fmt.sign_bit:  # codes without a sign ascend as they are, and so do those of a codebook
        return patterns
    negative = patterns >= fmt.sign_bit
    if fmt.kind == "integer":
        return np.where(negative, patterns - fmt.codes, patterns)
    return np.where(negative, fmt.sign_bit - 1 - patterns, patterns)


def encoded(operation: Operation, value: Value) -> Interval:
    """The codes that an `encode` may give, as an interval of keys."""
    assert isinstance(value, Interval)
    how = encode_policy(operation)
    keys = _each_end(lambda end: _keys(encode_by(end, how).view(np.uint8), how.format), value)
    if keys.low is keys.high:
        return keys
    made = Interval(np.minimum(keys.low, keys.high), np.maximum(keys.low, keys.high))
    # a saturated code (448, 127) is no power of two
    ends = decoded(made, how.format) if value.powers else made
    return replace(made, powers=value.powers and bool(_is_power(ends.low).all() and _is_power(ends.high).all()))


def patterns(keys: Value, fmt: ElementFormat) -> NDArray[np.uint8]:
    """The codes, as unsigned patterns, of keys that are points."""
    assert isinstance(keys, Interval)
    order, first = _in_order(fmt)
    codes: NDArray[np.uint8] = order[keys.low - first]
    return codes


def decoded(keys: Value, fmt: ElementFormat) -> Interval:
    """The values of an interval of keys."""
    assert isinstance(keys, Interval)
    order, first = _in_order(fmt)
    values = fmt.values()[order]
    return _each_end(lambda end: values[end - first], keys)


@cache
def _in_order(fmt: ElementFormat) -> tuple[NDArray[np.uint8], int]:
    """The codes of a format in the order of their keys, and the first of these."""
    codes = np.arange(fmt.codes, dtype=np.uint8)
    keys = _keys(codes, fmt)
    return codes[np.argsort(keys, kind="stable")], int(keys.min())


def codes_inside(found: Array, fmt: ElementFormat, allowed: Value) -> NDArray[np.bool_]:
    """Which found codes lie in their intervals of keys; a NaN code where a NaN is allowed, as a class."""
    assert isinstance(allowed, Interval)
    nan_keys = _keys(np.array(fmt.nan_codes, np.uint8), fmt)
    keys = _keys(found, fmt)
    between = (allowed.low <= keys) & (keys <= allowed.high)
    if allowed.powers:
        between &= _is_power(fmt.values()[found.astype(np.int64) & (fmt.codes - 1)])
    either = np.isin(allowed.low, nan_keys) | np.isin(allowed.high, nan_keys)
    return np.where(either, np.isin(keys, nan_keys) | between, between & ~np.isin(keys, nan_keys))


# --- words on intervals --------------------------------------------------------------------------------------------


def _apply(operation: Operation, operands: list[Any], *, bounds: bool) -> Value:
    word = operation.word
    if word == "encode":
        return encoded(operation, operands[0])
    if word == "select":
        return _select(*operands)
    if word in _CONDITIONS:
        return _CONDITIONS[word](*operands)
    if word == "pow2_approx":
        return _pow2_approx(operands[0], *operation.attributes[1:], ulps=2 if bounds else 0)
    if word == "wrap":
        return _wrap(operands[0], int(operation.attributes[0]))
    if word == "cast_int32":
        return _cast_int32(operands[0])
    if word == "low_bits":
        return _low_bits(operands[0], int(operation.attributes[0]))
    if word in _OF_MAGNITUDE:
        operands = [_magnitude(operands[0]), *operands[1:]]
    made = _corners(_function(operation), operands)
    if word in _KEEPS_POWERS and made.low is not made.high:
        made = replace(made, powers=_of_powers(*operands))
    return _widened(made, operation, WORDS[word].ulps if bounds else 0)


def _corners(function: Callable[..., Array], operands: list[Interval]) -> Interval:
    if all(each.low is each.high for each in operands):
        return points(function(*(each.low for each in operands)))
    results = [function(*ends) for ends in product(*((each.low, each.high) for each in operands))]
    low, high = results[0], results[0]
    for result in results[1:]:
        low, high = np.minimum(low, result), np.maximum(high, result)
    return Interval(low, high)


def _of_powers(*operands: Interval) -> bool:
    """Whether all are powers of two: known of what `pow2_approx` gave, and seen of a constant."""
    return all(each.powers or (each.low.size == 1 and bool(_is_power(each.low).all())) for each in operands)


def _magnitude(a: Interval) -> Interval:
    if a.low is a.high:
        return points(np.abs(a.low))
    ends = np.abs(a.low), np.abs(a.high)
    spans = (a.low < 0) & (a.high > 0)
    return Interval(np.where(spans, a.low.dtype.type(0), np.minimum(*ends)), np.maximum(*ends), a.powers)


def _widened(value: Interval, operation: Operation, ulps: int) -> Interval:
    """The interval by as many units in the last place larger as the instruction may be off; zeros and Inf are exact."""
    if not ulps:
        return _each_end(lambda end: _flushed(end, operation), value)
    low, high = value.low, value.high
    for _ in range(ulps):
        low = np.where(np.isfinite(low) & (low != 0), np.nextafter(low, -np.inf, dtype=low.dtype), low)
        high = np.where(np.isfinite(high) & (high != 0), np.nextafter(high, np.inf, dtype=high.dtype), high)
    return Interval(_flushed(low, operation), _flushed(high, operation))


def _flushed(a: Array, operation: Operation) -> Array:
    return np.where(np.abs(a) < 2.0**-126, np.copysign(a.dtype.type(0), a), a) if "ftz" in operation.attributes else a


def _function(operation: Operation) -> Callable[..., Array]:
    plain = _FUNCTIONS.get(operation.word)
    if operation.word == "splice":
        return _splice(int(operation.attributes[0]))
    if plain is None:
        plain = _DIRECTED[operation.word][operation.attributes[0]]
    if "ftz" not in operation.attributes:
        return plain
    return lambda *operands: plain(*(_flushed(each, operation) for each in operands))


def _fma(a: Array, b: Array, c: Array) -> Array:
    # compiled: of two binary64 numbers no NumPy type holds the product, and fractions take 30 us an element
    shape = np.broadcast_shapes(a.shape, b.shape, c.shape)
    first, second, third = (
        np.array(np.broadcast_to(each, shape), a.dtype, order="C").reshape(-1) for each in (a, b, c)
    )
    out = np.empty(shape, a.dtype)
    fuse(first, second, third, out.reshape(-1))
    return out


def _clamp(a: Array, low: Array, high: Array) -> Array:
    return np.where(a < low, low, np.where(a > high, high, a))


def _half_away(a: Array) -> Array:
    whole = np.trunc(a)
    return np.where(np.abs(a - whole) >= 0.5, whole + np.copysign(a.dtype.type(1), a), whole)


def _splice(bits: int) -> Callable[[Array, Array], Array]:
    below = 1 << bits

    def splice(a: Array, b: Array) -> Array:
        integer = np.where((b >= 0) & (b <= below - 1), b, 0).astype(np.uint32)
        pattern = a.astype(np.float32).view(np.uint32) & np.uint32(~(below - 1) & 0xFFFF_FFFF) | integer
        return np.where(np.isnan(a), a, pattern.view(np.float32)).astype(a.dtype)

    return splice


def _low_bits(a: Interval, bits: int) -> Interval:
    below = np.uint32(1 << bits)
    low, high = (np.where(np.isfinite(end), end, 0).astype(np.float32).view(np.uint32) for end in (a.low, a.high))
    together = low // below == high // below
    low, high = np.where(together, low % below, 0), np.where(together, high % below, below - 1)
    return Interval(low.astype(a.low.dtype), high.astype(a.low.dtype))


def _wrap(a: Interval, bits: int) -> Interval:
    half = 2.0 ** (bits - 1)

    def wrapped(end: Array) -> Array:
        wide = np.where(np.isfinite(end), end, 0).astype(np.float64)
        low: Array = (wide - np.floor((wide + half) / (2 * half)) * 2 * half).astype(end.dtype)
        return low

    if a.low is a.high:
        return points(wrapped(a.low))
    same = np.floor((a.low.astype(np.float64) + half) / (2 * half)) == np.floor(
        (a.high.astype(np.float64) + half) / (2 * half)
    )
    dtype = a.low.dtype.type
    return Interval(np.where(same, wrapped(a.low), dtype(-half)), np.where(same, wrapped(a.high), dtype(half - 1)))


def _cast_int32(a: Interval) -> Interval:
    dtype = a.low.dtype.type

    def cast(end: Array) -> Array:
        fits = (end >= -(2.0**31)) & (end < 2.0**31)
        cut: Array = np.where(fits, np.trunc(end) + dtype(0), dtype(-(2.0**31)))
        return cut

    if a.low is a.high:
        return points(cast(a.low))
    low, high = cast(a.low), cast(a.high)
    beyond = (a.high >= 2.0**31) & (a.low < 2.0**31)
    return Interval(np.where(beyond, dtype(-(2.0**31)), low), np.where(beyond, dtype(2.0**31), high))


def _pow2_down(a: Array) -> Array:
    size = np.abs(a)
    _, exponent = np.frexp(np.where(np.isfinite(size) & (size > 0), size, 1))
    return np.where(np.isfinite(size) & (size > 0), np.ldexp(a.dtype.type(1), exponent - 1), size).astype(a.dtype)


def _pow2_up(a: Array) -> Array:
    below = _pow2_down(a)
    return np.where(below == np.abs(a), below, below * 2).astype(a.dtype)


def _to(dtype: Any) -> Callable[[Array], Array]:
    return lambda a: a.astype(dtype).astype(a.dtype)


def _bfloat16(a: Array) -> Array:
    import ml_dtypes

    return a.astype(np.float32).astype(ml_dtypes.bfloat16).astype(a.dtype)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "div_full": lambda a, b: a / b,
    "div_approx": lambda a, b: a / b,
    "rcp": lambda a: a.dtype.type(1) / a,
    "rcp_approx": lambda a: a.dtype.type(1) / a,
    "fma": _fma,
    "flush": lambda a: np.where(np.abs(a) < 2.0**-126, np.copysign(a.dtype.type(0), a), a),
    "neg": np.negative,
    "abs": np.abs,
    "copysign": np.copysign,
    "max": np.maximum,
    "min": np.minimum,
    "max_number": np.fmax,
    "min_number": np.fmin,
    "clamp": _clamp,
}

#: words that read |a|, which is not monotone in a: they get the interval of |a|
_OF_MAGNITUDE = ("abs", "copysign", "pow2")

#: words that make powers of two, 0, Inf and NaN of such numbers
_KEEPS_POWERS = ("mul", "div", "rcp", "neg", "abs", "copysign", "max", "min", "max_number", "min_number", "clamp",
                 "pow2", "flush")  # fmt: skip

_DIRECTED: dict[str, dict[str, Callable[..., Array]]] = {
    "round": {
        "half_even": np.rint,
        "half_away": _half_away,
        "toward_zero": np.trunc,
        "up": np.ceil,
        "down": np.floor,
    },
    "to": {"float16": _to(np.float16), "bfloat16": _bfloat16, "float32": _to(np.float32)},
    "pow2": {"down": _pow2_down, "up": _pow2_up},
}


def _pow2_approx(a: Interval, kept: str = "float32", *, ulps: int) -> Interval:
    """exp2(ceil(l)) for every l within some ulp of log2 |a| in binary32, rounded to the format that is kept."""
    a, ends = _magnitude(a), []
    for end, side in ((a.low, -np.inf), (a.high, np.inf)):
        log = np.log2(end.astype(np.float64)).astype(np.float32)
        for _ in range(ulps):
            log = np.nextafter(log, np.float32(side))
        power = np.exp2(np.ceil(_DIRECTED["to"][kept](log)).astype(np.float64)).astype(end.dtype)
        ends.append(np.where(np.isfinite(end) & (end > 0), power, end))
    return Interval(ends[0], ends[1], powers=True)


def _compare(
    holds_somewhere: Callable[[Interval, Interval], Array], holds_everywhere: Callable[[Interval, Interval], Array]
) -> Callable[[Interval, Interval], Flag]:
    return lambda a, b: Flag(~holds_everywhere(a, b), holds_somewhere(a, b))


def _same_point(a: Interval, b: Interval) -> Array:
    return np.asarray((a.low == b.high) & (a.high == b.low))


def _negated(flag: Flag) -> Flag:
    return Flag(flag.may_hold, flag.may_fail)


_equal = _compare(lambda a, b: (a.low <= b.high) & (b.low <= a.high), _same_point)


def _settled(test: Callable[[Array], Array]) -> Callable[[Interval], Flag]:
    return lambda a: Flag(~(test(a.low) & test(a.high)), test(a.low) | test(a.high))


_CONDITIONS: dict[str, Callable[..., Flag]] = {
    "eq": _equal,
    "ne": lambda a, b: _negated(_equal(a, b)),
    "lt": _compare(lambda a, b: a.low < b.high, lambda a, b: a.high < b.low),
    "le": _compare(lambda a, b: a.low <= b.high, lambda a, b: a.high <= b.low),
    "isnan": _settled(np.isnan),
    "isinf": _settled(np.isinf),
}


def _select(flag: Flag, yes: Interval, no: Interval) -> Interval:
    both = flag.may_hold & flag.may_fail
    low = np.where(flag.may_hold, yes.low, no.low)
    if yes.low is yes.high and no.low is no.high and not both.any():
        return points(low)
    high = np.where(flag.may_hold, yes.high, no.high)
    return Interval(
        np.where(both, np.minimum(yes.low, no.low), low),
        np.where(both, np.maximum(yes.high, no.high), high),
        _of_powers(yes, no),
    )


def _largest(groups: Array, kept: Array) -> Interval:
    return points(np.max(np.where(kept, np.abs(groups), np.float32(0)), axis=-1, keepdims=True))


def _nan(some: Callable[..., Array]) -> Callable[[Array], Flag]:
    def reduced(groups: Array) -> Flag:
        found = np.asarray(some(np.isnan(groups), axis=-1, keepdims=True))
        return Flag(~found, found)

    return reduced


def _extreme(choose: Callable[..., Array], nothing: float) -> Callable[[Array], Interval]:
    def reduced(groups: Array) -> Interval:
        numbers = ~np.isnan(groups)
        found = choose(np.where(numbers, groups, np.float32(nothing)), axis=-1, keepdims=True)
        return points(np.where(numbers.any(axis=-1, keepdims=True), found, np.float32(0)) + np.float32(0))

    return reduced


def _signed_amax(groups: Array) -> Interval:
    size = np.where(np.isnan(groups), np.float32(0), np.abs(groups))
    first = np.argmax(size, axis=-1)[..., None]
    found = np.take_along_axis(groups, first, axis=-1)
    return points(np.where(np.take_along_axis(size, first, axis=-1) == 0, np.float32(0), found))


def _from(start: str, sign: int, groups: Array) -> Interval:
    kept = np.broadcast_to(np.float32(start), (*groups.shape[:-1], 1))
    for i in range(groups.shape[-1]):
        x = groups[..., i : i + 1]
        kept = np.where(x > kept if sign > 0 else x < kept, x, kept)
    return points(kept)


def _sum(order: str, terms: Array) -> Interval:
    lanes = 1 if order == "sequential" else int(order.removeprefix("lanes_"))
    sums = [np.zeros((*terms.shape[:-1], 1), np.float32)] * lanes
    for i in range(terms.shape[-1]):
        sums[i % lanes] = sums[i % lanes] + terms[..., i : i + 1]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [low + high for low, high in zip(sums[:half], sums[half:], strict=True)]
    return points(sums[0])


_REDUCTIONS: dict[str, Callable[..., Value]] = {
    "signed_amax": _signed_amax,
    "max_from": lambda groups, start: _from(start, 1, groups),
    "min_from": lambda groups, start: _from(start, -1, groups),
    "sum": lambda groups, order: _sum(order, groups),
    "sum_squares": lambda groups, order: _sum(order, groups * groups),
    "amax_finite": lambda groups: _largest(groups, np.isfinite(groups)),
    "amax_number": lambda groups: _largest(groups, ~np.isnan(groups)),
    "amax": lambda groups: points(np.max(np.abs(groups), axis=-1, keepdims=True)),
    "any_nan": _nan(np.any),
    "all_nan": _nan(np.all),
    "largest": _extreme(np.max, -np.inf),
    "smallest": _extreme(np.min, np.inf),
}
