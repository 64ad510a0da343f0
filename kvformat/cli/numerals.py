"""How numbers and codes are read and written on the command line: exactly, never through a rounded float."""

from __future__ import annotations

import math
import re
from decimal import Context
from fractions import Fraction

from kvformat.elements.exact import NAN, Number, infinity
from kvformat.elements.formats import ElementFormat
from kvformat.errors import InputError

# four exponent digits: far past every format, and still quick to compute with
_DECIMAL = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d{1,4})?", re.ASCII)
_HEX = re.compile(r"0x([0-9a-f]*)\.?([0-9a-f]*)(?:p([+-]?\d{1,4}))?", re.ASCII)
_RATIO = re.compile(r"\d+/\d*[1-9]\d*", re.ASCII)
_LONGEST = 400


def parse_number(text: str) -> Number:
    """The number a user wrote, exactly: 0.3, -1e-7, 0x1.8p3, 3/8, inf, nan. Raises InputError for anything else."""
    word = text.strip().lower()
    negative, body = word.startswith("-"), word.removeprefix("-") if word.startswith("-") else word.removeprefix("+")
    if body in ("inf", "infinity"):
        return infinity(negative)
    if body == "nan":
        return NAN
    magnitude = _magnitude(body) if len(body) <= _LONGEST else None
    if magnitude is None:
        code = "; for a code add --code" if body.startswith("0b") else ""
        raise InputError(f"{text[:40]!r} is not a number; write 0.3, -1e-7, 0x1.8p3, 3/8, inf or nan{code}")
    return Number(negative, magnitude)


def _magnitude(body: str) -> Fraction | None:
    if _DECIMAL.fullmatch(body) or _RATIO.fullmatch(body):
        return Fraction(body)
    match = _HEX.fullmatch(body)
    if match is None or not match[1] + match[2]:
        return None
    return int(match[1] + match[2], 16) * Fraction(2) ** (int(match[3] or 0) - 4 * len(match[2]))


def parse_code(text: str, fmt: ElementFormat) -> int:
    """The bit pattern a user wrote: 0x7e, 0b0_1111_110 or 126. Raises InputError for anything else."""
    try:
        code = int(text.replace("_", ""), 0)
    except ValueError:
        raise InputError(f"{text[:40]!r} is not a code; write 0x7e, 0b0_1111_110 or 126") from None
    if not 0 <= code < fmt.codes:
        raise InputError(f"{fmt.name} has no code {text[:40]}; its codes are 0..{fmt.codes - 1}")
    return code


def code_text(code: int, fmt: ElementFormat) -> str:
    """0x7E: as many hex digits as the format has nibbles."""
    return f"0x{code:0{fmt.digits}X}"


def bits_text(code: int, fmt: ElementFormat) -> str:
    """0_1111_110: the bits, split where a field ends."""
    if fmt.kind == "codebook":
        return f"{code:0{fmt.bits}b}"
    widths = [1 if fmt.sign_bit else 0, fmt.exponent_bits, fmt.mantissa_bits]
    bits, fields = f"{code:0{fmt.bits}b}", []
    for width in filter(None, widths):
        fields.append(bits[:width])
        bits = bits[width:]
    return "_".join(fields)


def hex_float(value: float) -> str:
    """The value as a C99 hex float without trailing zeros: 0x1.8p+3, -0x0p+0, inf, nan."""
    return re.sub(r"\.?0*p", "p", value.hex()) if math.isfinite(value) else str(value)


def decimal_text(number: Number) -> str:
    """The number in decimal, behind a ~ where 17 digits do not say it exactly."""
    if number.nan:
        return "nan"
    sign = "-" if number.negative else ""
    if number.magnitude is None:
        return f"{sign}inf"
    return sign + _decimal(number.magnitude)


def _decimal(magnitude: Fraction) -> str:
    if magnitude == 0 or 1e-300 < magnitude < 1e300:
        text = repr(float(magnitude)).removesuffix(".0")
    else:
        context = Context(prec=17)
        text = str(context.divide(*map(context.create_decimal, magnitude.as_integer_ratio())).normalize()).lower()
    return text if Fraction(text) == magnitude else f"~{text}"
