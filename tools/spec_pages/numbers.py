"""How numbers stand on a page: decimal where it is exact and short, C99 hex floats everywhere."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from kvformat.cli.numerals import bits_text, code_text, decimal_text, hex_float
from kvformat.elements import exact
from kvformat.elements.exact import Number
from kvformat.elements.formats import ElementFormat

TWO = Fraction(2)


def power(exponent: int) -> str:
    """2^-9."""
    return f"2^{exponent}"


def short(x: Number) -> str:
    """The number in at most 12 characters: exact in decimal, else as odd * 2^n, else rounded behind a ~."""
    text = decimal_text(x)
    if x.magnitude is None or (len(text) <= 12 and not text.startswith(("~", "-~")) and "e" not in text):
        return text
    odd, exponent = dyadic(x.magnitude)
    sign = "-" if x.negative else ""
    if odd is not None and odd < 1000:
        return f"{sign}{'' if odd == 1 else f'{odd}*'}{power(exponent)}"
    return f"{sign}~{float(x.magnitude):.9g}"


def dyadic(size: Fraction) -> tuple[int | None, int]:
    """The odd integer and the exponent whose product with a power of two is `size`; None where there are none."""
    if size == 0 or size.denominator & (size.denominator - 1):
        return None, 0
    exponent = -(size.denominator.bit_length() - 1)
    odd = size.numerator
    while odd % 2 == 0:
        odd, exponent = odd // 2, exponent + 1
    return odd, exponent


def hex_text(x: Number) -> str:
    """The number as a C99 hex float; every number on the pages is a float64."""
    value = float(x)
    if x.magnitude is not None and Fraction(abs(value)) != x.magnitude:
        raise ValueError(f"{x} is no float64")
    return hex_float(value)


def value_of(code: int, fmt: ElementFormat) -> str:
    """The value of a code, short."""
    return short(exact.decode(code, fmt))


def coded(code: int, fmt: ElementFormat) -> str:
    """0x7E in backticks."""
    return f"`{code_text(code, fmt)}`"


def fields(code: int, fmt: ElementFormat) -> str:
    """The bits split at the field borders, in backticks."""
    return f"`{bits_text(code, fmt)}`"


def float32_bits(x: Any) -> str:
    """The binary32 bit pattern of a scale: 0x3F800000."""
    value = np.float32(x)
    return "0x7FC00000" if np.isnan(value) else f"0x{value.view(np.uint32):08X}"


def next_float32(x: Fraction) -> Fraction:
    """The next float32 above."""
    return Fraction(float(np.nextafter(np.float32(float(x)), np.float32(math.inf))))


def next_float32_below(x: Fraction) -> Fraction:
    """The next float32 below."""
    return Fraction(float(np.nextafter(np.float32(float(x)), np.float32(-math.inf))))
