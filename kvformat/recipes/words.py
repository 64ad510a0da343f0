"""What each word does in compiled code: one small function per word, on float32 or (for `real`) float64 scalars."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numba.extending import intrinsic

from kvformat.elements.codec import Conversion, conversion, encode_bits
from kvformat.elements.formats import BINARIES, Rounding
from kvformat.elements.static import compiled, inlined, static
from kvformat.recipes.program import Level, Operation
from kvformat.recipes.reduce import WIDENERS

Step = Callable[..., Any]


@inlined
def _max(a: Any, b: Any) -> Any:
    if a != a or b != b:
        return a + b
    return a if a > b or (a == b and not np.signbit(a)) else b


@inlined
def _min(a: Any, b: Any) -> Any:
    if a != a or b != b:
        return a + b
    return a if a < b or (a == b and np.signbit(a)) else b


def _max_number(a: Any, b: Any) -> Any:
    return b if a != a else (a if b != b else _max(a, b))


def _min_number(a: Any, b: Any) -> Any:
    return b if a != a else (a if b != b else _min(a, b))


def _clamp(a: Any, low: Any, high: Any) -> Any:
    # both comparisons are false for a NaN, which therefore stays
    return low if a < low else (high if a > high else a)  # noqa: FURB136 min() would not say what a NaN does


@intrinsic  # type: ignore[untyped-decorator]  # numba has no type information
def _fused(context: Any, a: Any, b: Any, c: Any) -> Any:
    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), call


@compiled
def fuse(a: Any, b: Any, c: Any, out: Any) -> None:
    """Into `out`: a * b + c, rounded once, of arrays of one axis and one dtype."""
    for i in range(out.size):
        out[i] = _fused(a[i], b[i], c[i])


#: words that are one expression, the same in both precisions
_EXPRESSIONS: dict[str, Step] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "fma": lambda a, b, c: _fused(a, b, c),
    "neg": lambda a: -a,
    "abs": lambda a: np.abs(a),
    "copysign": lambda a, b: np.copysign(a, b),
    "max": lambda a, b: _max(a, b),
    "min": lambda a, b: _min(a, b),
    "max_number": _max_number,
    "min_number": _min_number,
    "clamp": _clamp,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "isnan": lambda a: a != a,
    "isinf": lambda a: np.abs(a) == np.inf,
    "select": lambda flag, a, b: a if flag else b,
}


def _rcp(operation: Operation, real: Any) -> Step:
    one = real(1)
    return lambda a: one / a


def _round(operation: Operation, real: Any) -> Step:
    one, half = real(1), real(0.5)

    def half_away(a: Any) -> Any:
        # trunc(a + 0.5) would take 0.49999997 to 1, since the sum rounds up; a - trunc(a) is exact
        whole = np.trunc(a)
        return whole + np.copysign(one, a) if np.abs(a - whole) >= half else whole

    directions: dict[str, Step] = {
        "half_even": lambda a: np.rint(a),
        "half_away": half_away,
        "toward_zero": lambda a: np.trunc(a),
        "up": lambda a: np.ceil(a),
        "down": lambda a: np.floor(a),
    }
    return directions[operation.attributes[0]]


def _to(operation: Operation, real: Any) -> Step:
    name = operation.attributes[0]
    if name == "float32":
        return lambda a: real(np.float32(a))
    policy, widen = static(Conversion(BINARIES[name], "ieee")), WIDENERS[name]
    unsigned = np.uint32 if real is np.float32 else np.uint64
    return lambda a: real(widen(encode_bits(policy, real(a).view(unsigned))))


def _pow2(operation: Operation, real: Any) -> Step:
    exponent = np.uint64(0x7FF << 52)
    two = real(2)

    # every float32 is a normal float64, whose bits without the mantissa are the power of two
    def down(a: Any) -> Any:
        power = np.uint64(np.float64(a).view(np.uint64) & exponent).view(np.float64)
        return real(power) if a == a else a

    below = inlined(down)

    def up(a: Any) -> Any:
        power = below(a)
        return power if power == np.abs(a) or a != a else power * two

    return down if operation.attributes[0] == "down" else up


def _pow2_approx(operation: Operation, real: Any) -> Step:
    # ceil decides next to an integer k, and log2 in binary64 suffices there: no binary32 number above 2^k has a
    # logarithm within 2^-26 of the middle between k and the next binary32 number
    bias, mantissa = np.float64(1023), np.uint64(52)
    kept = inlined(_to(replace(operation, attributes=operation.attributes[1:] or ("float32",)), np.float32))

    def up(a: Any) -> Any:
        size = np.abs(a)
        exponent = np.ceil(kept(np.float32(np.log2(np.float64(size)))))
        power = np.uint64(np.uint64(np.float64(exponent) + bias) << mantissa).view(np.float64)
        return real(power) if real(0) < size < real(np.inf) else size

    return up


def _flushing(operation: Operation, real: Any) -> Step:
    exact = inlined(_rcp(operation, real) if operation.word == "rcp_approx" else _EXPRESSIONS["div"])
    smallest = real(2.0**-126)

    @inlined
    def flush(a: Any) -> Any:
        return np.copysign(real(0), a) if np.abs(a) < smallest else a

    unary = operation.word == "rcp_approx"
    if "ftz" not in operation.attributes:
        return (lambda a: exact(a)) if unary else (lambda a, b: exact(a, b))
    return (lambda a: flush(exact(flush(a)))) if unary else (lambda a, b: flush(exact(flush(a), flush(b))))


def _flush(operation: Operation, real: Any) -> Step:
    smallest = real(2.0**-126)
    return lambda a: np.copysign(real(0), a) if np.abs(a) < smallest else a


def _cast_int32(operation: Operation, real: Any) -> Step:
    below, above = real(-(2.0**31)), real(2.0**31)
    return lambda a: np.trunc(a) + real(0) if below <= a < above else below


def _wrap(operation: Operation, real: Any) -> Step:
    half = np.float64(2.0 ** (int(operation.attributes[0]) - 1))

    def wrap(a: Any) -> Any:
        wide = np.float64(a)
        turns = np.floor((wide + half) / (half + half))
        # the sum with +0 makes a zero +0
        return real(wide - turns * (half + half) + np.float64(0)) if np.abs(a) < np.inf else real(0)

    return wrap


def _splice(operation: Operation, real: Any) -> Step:
    low = np.uint32((1 << int(operation.attributes[0])) - 1)
    kept, zero, most = np.uint32(~low), real(0), real(low)

    def splice(a: Any, b: Any) -> Any:
        integer = np.uint32(b) if zero <= b <= most else np.uint32(0)
        pattern = np.uint32(np.uint32(np.float32(a).view(np.uint32) & kept) | integer)
        return real(pattern.view(np.float32)) if a == a else a

    return splice


def _low_bits(operation: Operation, real: Any) -> Step:
    low = np.uint32((1 << int(operation.attributes[0])) - 1)
    return lambda a: real(np.uint32(np.float32(a).view(np.uint32) & low)) if np.abs(a) < real(np.inf) else real(0)


def _encode(operation: Operation, real: Any) -> Step:
    policy = static(encode_policy(operation))
    unsigned = np.uint32 if real is np.float32 else np.uint64
    return lambda a: encode_bits(policy, real(a).view(unsigned))


_FAMILIES: dict[str, Callable[[Operation, Any], Step]] = {
    "rcp": _rcp,
    "round": _round,
    "to": _to,
    "pow2": _pow2,
    "pow2_approx": _pow2_approx,
    "flush": _flush,
    "cast_int32": _cast_int32,
    "wrap": _wrap,
    "splice": _splice,
    "low_bits": _low_bits,
    "rcp_approx": _flushing,
    "div_approx": _flushing,
    "div_full": _flushing,
    "encode": _encode,
}


def encode_policy(operation: Operation) -> Any:
    """The `Conversion` that an `encode` operation names; its attributes come in any number, in order."""
    fmt, *policy = operation.attributes
    overflow = "ieee" if "ieee" in policy else "saturate"
    rounding = next((word for word in policy if word not in ("ieee", "saturate")), None)
    if rounding in ("nearest_away", "nearest_toward_zero"):
        return conversion(fmt, overflow)._replace(rounding=cast("Rounding", rounding))
    return conversion(fmt, overflow, rounding)


def step(operation: Operation, real: Any) -> Step:
    """The compiled function of an operation: takes its operands as scalars of type `real`, gives its result."""
    expression = _EXPRESSIONS.get(operation.word)
    return inlined(expression if expression is not None else _FAMILIES[operation.word](operation, real))


def rounding_to(name: str, real: Any) -> Step:
    """The compiled function that rounds a scalar of type `real` to a float format and gives it back as `real`."""
    return inlined(_to(Operation("", "to", (), (name,)), real))


def storing(level: Level, real: Any) -> tuple[Step, Step]:
    """How a parameter is kept and how it is read: compiled functions of a scalar, `real` to stored and to float32."""
    store = level.format
    if store.name == "float32":
        return inlined(lambda a: np.float32(a)), inlined(lambda stored: stored)
    if store.element is None:
        policy, widen = static(Conversion(BINARIES[store.name], "ieee")), WIDENERS[store.name]
        unsigned = np.uint32 if real is np.float32 else np.uint64
        return inlined(lambda a: encode_bits(policy, real(a).view(unsigned))), inlined(lambda stored: widen(stored))
    encode, table = step(level.storing, real), store.element.values()
    return inlined(lambda a: encode(real(a))), inlined(lambda stored: table[stored])
