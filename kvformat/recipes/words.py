"""What each word does in compiled code: one small function per word, on float32 or (for `real`) float64 scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvformat.elements.codec import conversion, encode_bits
from kvformat.elements.static import inlined, static
from kvformat.recipes.program import Operation

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


#: words that are one expression, the same in both precisions
_EXPRESSIONS: dict[str, Step] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
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


def _encode(operation: Operation, real: Any) -> Step:
    policy = static(encode_policy(operation))
    unsigned = np.uint32 if real is np.float32 else np.uint64
    return lambda a: encode_bits(policy, real(a).view(unsigned))


_FAMILIES: dict[str, Callable[[Operation, Any], Step]] = {"rcp": _rcp, "round": _round, "encode": _encode}


def encode_policy(operation: Operation) -> Any:
    """The `Conversion` that an `encode` operation names; its attributes come in any number, in order."""
    fmt, *policy = operation.attributes
    overflow = "ieee" if "ieee" in policy else "saturate"
    rounding = next((word for word in policy if word not in ("ieee", "saturate")), None)
    return conversion(fmt, overflow, rounding)


def step(operation: Operation, real: Any) -> Step:
    """The compiled function of an operation: takes its operands as scalars of type `real`, gives its result."""
    expression = _EXPRESSIONS.get(operation.word)
    return inlined(expression if expression is not None else _FAMILIES[operation.word](operation, real))
