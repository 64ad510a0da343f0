"""The slow twin: values and rounding from the definition, in exact fractions, sharing no code with the codec.

Only a format's numbers (field widths, special codes) are common to both; every value and every decision is made here
again, by search over all values instead of by bit arithmetic.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise

from kvformat.elements.formats import ElementFormat, element


@dataclass(frozen=True)
class Number:
    """A real number with what IEEE 754 adds: a sign on zero, Inf (magnitude None) and NaN."""

    negative: bool
    magnitude: Fraction | None
    nan: bool = False

    @property
    def finite(self) -> bool:
        """True for a real number, zeros included."""
        return self.magnitude is not None

    def __float__(self) -> float:
        """The nearest float64; exact for every value that kvformat stores."""
        if self.nan:
            return math.nan
        magnitude = math.inf if self.magnitude is None else float(self.magnitude)
        return -magnitude if self.negative else magnitude

    @property
    def value(self) -> Fraction:
        """The real number. Raises ValueError for Inf and NaN."""
        if self.magnitude is None:
            raise ValueError("Inf and NaN are not real numbers")
        return -self.magnitude if self.negative else self.magnitude


NAN = Number(negative=False, magnitude=None, nan=True)


def infinity(negative: bool) -> Number:
    """Inf with that sign."""
    return Number(negative, None)


def number(x: float | Fraction | Number) -> Number:
    """The number that x is, exactly: every float is a fraction. -0.0 keeps its sign."""
    if isinstance(x, Number):
        return x
    if isinstance(x, float):
        if math.isnan(x):
            return NAN
        negative = math.copysign(1.0, x) < 0
        return infinity(negative) if math.isinf(x) else Number(negative, abs(Fraction(x)))
    return Number(x < 0, abs(Fraction(x)))


@dataclass(frozen=True)
class Binary:
    """An IEEE 754 binary interchange format, as its precision (significand bits) and exponent range."""

    precision: int
    min_exponent: int
    max_exponent: int


BINARIES = {
    "float32": Binary(24, -126, 127),
    "float16": Binary(11, -14, 15),
    "bfloat16": Binary(8, -126, 127),
    "float64": Binary(53, -1022, 1023),
}


def round_binary(x: Number, binary: Binary) -> Number:
    """Round to nearest even in that format, subnormals kept, overflow to Inf (IEEE 754-2019 section 4.3.1)."""
    if x.magnitude is None or x.magnitude == 0:
        return x
    size = x.magnitude
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < _power_of_two(exponent):
        exponent -= 1
    unit = _power_of_two(max(exponent, binary.min_exponent) - binary.precision + 1)
    # Fraction's round() is to nearest, ties to even
    rounded = round(size / unit) * unit
    if rounded >= _power_of_two(binary.max_exponent + 1):
        return infinity(x.negative)
    return Number(x.negative, rounded)


def decode(code: int, fmt: str | ElementFormat) -> Number:
    """The value of a bit pattern, from the definition of its fields."""
    target = element(fmt)
    if code in target.nan_codes:
        return NAN
    if target.kind == "exponent":
        return number(_power_of_two(code - target.bias))
    if target.kind == "codebook":
        return number(Fraction(target.table[code]))
    if target.negatives != "kept":
        return infinity(negative=False) if code in target.inf_codes else Number(False, _size(code, target))
    negative, pattern = divmod(code, target.codes // 2)
    if target.kind == "integer":
        return number(pattern - negative * target.codes // 2)
    if code in target.inf_codes:
        return infinity(bool(negative))
    return Number(bool(negative), _magnitude(pattern, target))


def _magnitude(pattern: int, fmt: ElementFormat) -> Fraction:
    field, mantissa = divmod(pattern, 2**fmt.mantissa_bits)
    fraction = Fraction(mantissa, 2**fmt.mantissa_bits)
    if field == 0 and fmt.kind == "float":
        return fraction * _power_of_two(1 - fmt.bias)
    return (1 + fraction) * _power_of_two(field - fmt.bias)


def _size(pattern: int, fmt: ElementFormat) -> Fraction:
    """The value of a pattern without its sign."""
    return Fraction(pattern) if fmt.kind == "integer" else _magnitude(pattern, fmt)


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(2**exponent) if exponent >= 0 else Fraction(1, 2**-exponent)


@cache
def magnitudes(fmt: ElementFormat) -> tuple[Fraction, ...]:
    """The finite magnitudes in ascending order, and as last entry the one that would come next without a limit.

    Overflow is judged after rounding: a number is beyond the format if that next magnitude is the nearest one. A
    codebook has no rule for what would come next: its magnitudes end with its largest one.
    """
    if fmt.kind == "codebook":
        return tuple(sorted({abs(Fraction(value)) for value in fmt.table}))
    return tuple(_size(pattern, fmt) for pattern in range(fmt.max_code + 2))


@cache
def midpoints(fmt: ElementFormat) -> tuple[Fraction, ...]:
    """The magnitudes, ascending, where a number lies halfway between two neighbouring values."""
    values = tuple(map(Fraction, fmt.table)) if fmt.kind == "codebook" else magnitudes(fmt)
    return tuple(sorted({abs(a + b) / 2 for a, b in pairwise(values)}))


def nearest(size: Fraction, steps: tuple[Fraction, ...], rounding: str) -> int:
    """The index of the step that `size` rounds to. Indices are codes, so a tie goes to the even index.

    Below the first step the answer is 0, above the last one the last.
    """
    if size <= steps[0]:
        return 0
    if size >= steps[-1]:
        return len(steps) - 1
    upper = bisect_left(steps, size)
    if steps[upper] == size or rounding == "up":
        return upper
    lower = upper - 1
    if rounding == "down":
        return lower
    below, above = size - steps[lower], steps[upper] - size
    if below == above:
        tie = {"nearest_even": lower + lower % 2, "nearest_away": upper, "nearest_toward_zero": lower}
        return tie[rounding]
    return lower if below < above else upper


def encode(
    x: float | Fraction | Number,
    fmt: str | ElementFormat,
    *,
    overflow: str = "saturate",
    rounding: str | None = None,
) -> int:
    """The bit pattern of x, rounded once from the exact number. The policies are those of `kvformat.encode`.

    rounding: None: the format's first one.
    """
    target, exact = element(fmt), number(x)
    rounding = rounding or target.roundings[0]
    if exact.nan:
        return target.nan_input_code
    if target.kind == "codebook":
        return _looked_up(exact, target, rounding)
    if target.negatives == "lowest" and exact.negative:
        return 0
    steps = magnitudes(target)
    index = len(steps) - 1 if exact.magnitude is None else nearest(exact.magnitude, steps, rounding)
    if target.signed_integer:
        return min(index, target.max_code) if not exact.negative else -min(index, target.max_code + 1) % target.codes
    if index > target.max_code:
        index = target.max_code if overflow == "saturate" else target.overflow_code
    if target.kind == "exponent" or (index == 0 and not target.has_negative_zero):
        return index
    return index | (target.sign_bit if exact.negative else 0)


def _looked_up(x: Number, fmt: ElementFormat, rounding: str) -> int:
    """The code of the nearest value of a table; what lies beyond its ends becomes the value there."""
    if x.magnitude is None:
        return 0 if x.negative else fmt.max_code
    distances = [abs(Fraction(value) - x.value) for value in fmt.table]
    lower = distances.index(min(distances))
    if distances.count(distances[lower]) == 1:
        return lower
    upper = lower + 1
    if rounding in ("nearest_away", "nearest_toward_zero"):
        positive = x.value >= 0
        return upper if positive == (rounding == "nearest_away") else lower
    return {"nearest_up": upper, "nearest_down": lower, "nearest_even": lower + lower % 2}[rounding]
