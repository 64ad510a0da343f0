"""One page and one table of values per element format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np

import kvformat
from kvformat.cli.numerals import hex_float
from kvformat.cli.table import csv_lines
from kvformat.elements import exact
from kvformat.elements.exact import NAN, Number, infinity, number
from kvformat.elements.formats import ELEMENTS, ElementFormat
from spec_pages.numbers import TWO, coded, fields, hex_text, next_float32, power, short, value_of
from spec_pages.statements_elements import traps_of
from spec_pages.text import block, bullets, grid, page, table, wrap

_POLICIES = ("saturate", "ieee")


def files() -> dict[str, str]:
    """Path under spec/ and text of the pages and tables of the element formats."""
    found = {}
    for fmt in ELEMENTS.values():
        found[f"elements/{fmt.name}.md"] = _page(fmt)
        found[f"elements/{fmt.name}.csv"] = "\n".join(csv_lines(fmt)) + "\n"
    return found


def encoded(x: Number, fmt: ElementFormat, overflow: str = "saturate", rounding: str = "") -> int:
    """The code of x by the exact twin. Raises AssertionError if the fast codec gives another one."""
    rounding = rounding or fmt.roundings[0]
    code = exact.encode(x, fmt, overflow=overflow, rounding=rounding)
    fast = kvformat.encode(np.float64(float(x)), fmt.name, overflow=overflow, rounding=rounding)
    assert int(fast) & (fmt.codes - 1) == code, (x, fmt.name, overflow, rounding)
    return code


def _page(fmt: ElementFormat) -> str:
    return page(
        "elements/element.md",
        {
            "name": fmt.name,
            "purpose": wrap(fmt.purpose),
            "source": fmt.source,
            "fields": f"![bit fields of {fmt.name}]({fmt.name}.svg)\n\n{_fields(fmt)}",
            "limits": _limits(fmt),
            "rounding": _rounding(fmt),
            "borders": _borders(fmt),
            "traps": bullets(traps_of(fmt)),
            "values": _values(fmt),
        },
    )


def _fields(fmt: ElementFormat) -> str:
    """How a bit pattern is read."""
    if fmt.kind == "integer":
        how = "two's complement" if fmt.sign_bit else "unsigned"
        return f"{fmt.bits} bits, {how}. The value is the integer."
    if fmt.kind == "codebook":
        return f"{fmt.bits} bits: a place in a table of {len(fmt.table)} values, ascending."
    if fmt.kind == "exponent":
        return f"{fmt.bits} bits, all exponent: no sign, no mantissa. The value of code c is 2^(c - {fmt.bias})."
    exponent, mantissa, bias = fmt.exponent_bits, fmt.mantissa_bits, fmt.bias
    scale = 2**mantissa
    if not fmt.sign_bit:
        return (
            f"{fmt.bits} bits: exponent e ({exponent}, bias {bias}), mantissa m ({mantissa}), no sign. "
            "Bits are written `e_m`.\n\n"
            f"- e > 0: 2^(e - {bias}) * (1 + m/{scale})\n"
            f"- e = 0: {power(1 - bias)} * m/{scale} (zero and the subnormals)"
        )
    return (
        f"{fmt.bits} bits: sign s (1), exponent e ({exponent}, bias {bias}), mantissa m ({mantissa}). "
        "Bits are written `s_e_m`.\n\n"
        f"- e > 0: (-1)^s * 2^(e - {bias}) * (1 + m/{scale})\n"
        f"- e = 0: (-1)^s * {power(1 - bias)} * m/{scale} (zero and the subnormals)"
    )


def _limits(fmt: ElementFormat) -> str:
    smallest = 0 if fmt.kind == "exponent" else 1
    rows = [("largest", fmt.max_code)]
    if fmt.kind == "float":
        rows += [("smallest normal", 1 << fmt.mantissa_bits), ("smallest positive (subnormal)", smallest)]
        rows += [("one", encoded(number(1), fmt)), ("zero", 0)]
        rows += [("negative zero", fmt.sign_bit)] if fmt.has_negative_zero else []
    elif fmt.kind == "exponent":
        rows += [("one", fmt.bias), ("smallest", smallest)]
    elif fmt.kind == "codebook":
        rows += [("smallest", 0)]
    else:
        rows += [("one", 1)] if fmt.max_code else []
        rows += [("zero", 0)]
        rows += [("minus one", fmt.codes - 1), ("smallest", fmt.sign_bit)] if fmt.sign_bit else []
    shown = [_limit(what, code, fmt) for what, code in rows]
    for what, codes in (("Inf", fmt.inf_codes), ("NaN", fmt.nan_codes)):
        code_list = ", ".join(coded(code, fmt) for code in codes) or "none"
        bit_list = ", ".join(fields(code, fmt) for code in codes)
        shown.append((what, "", "", code_list, bit_list))
    return table(("", "value", "hex float", "code", "bits"), shown, right=("value",))


def _limit(what: str, code: int, fmt: ElementFormat) -> tuple[str, ...]:
    value = exact.decode(code, fmt)
    return what, short(value), f"`{hex_text(value)}`", coded(code, fmt), fields(code, fmt)


def _rounding(fmt: ElementFormat) -> str:
    if fmt.rounding_required:
        names = ", ".join(f"`{name}`" for name in fmt.roundings)
        return f"`rounding` must be named ({names}); `nearest_even` sends a tie to the even code. The sign is ignored."
    sign = "" if fmt.negatives == "kept" else " A negative number becomes 0."
    if fmt.kind == "codebook":
        return (
            f"One rounding from the exact input to the nearest value of the table, a tie to {_TIES[fmt.roundings[0]]}."
        )
    if fmt.kind == "integer":
        return f"One rounding from the exact input to the nearest integer, a tie to the even one.{sign}"
    return f"One rounding from the exact input to the nearest value, a tie to the even code, subnormals kept.{sign}"


_TIES = {
    "nearest_up": "the larger one",
    "nearest_down": "the smaller one",
    "nearest_even": "the even code",
    "nearest_away": "the one farther from zero",
    "nearest_toward_zero": "the one nearer to zero",
}


def _borders(fmt: ElementFormat) -> str:
    if fmt.kind == "exponent":
        return _exponent_borders(fmt)
    rows = []
    for what, x in _border_inputs(fmt):
        codes = [encoded(x, fmt, overflow) for overflow in _POLICIES]
        results = [f"{coded(code, fmt)} = {value_of(code, fmt)}" for code in codes]
        rows.append((what, short(x), f"`{hex_text(x)}`", *results))
    return table(("input", "value", "hex float", "`saturate`", "`ieee`"), rows, right=("value",))


def _border_inputs(fmt: ElementFormat) -> Iterator[tuple[str, Number]]:
    if fmt.kind == "codebook":
        yield from _table_inputs(fmt)
        return
    largest, beyond = exact.magnitudes(fmt)[-2:]
    middle = (largest + beyond) / 2
    yield "largest value", number(largest)
    yield f"halfway to the next step, {beyond}: a tie", number(middle)
    yield "the float32 after it", number(next_float32(middle))
    if fmt.signed_integer:
        lowest = -largest - 1
        yield "smallest value", number(lowest)
        yield "halfway to the next step: a tie", number(lowest - Fraction(1, 2))
        yield "-200" if fmt.bits == 8 else "-20", number(-200 if fmt.bits == 8 else -20)
    elif not fmt.sign_bit:
        yield "a negative number", number(-largest)
    yield "+Inf", infinity(negative=False)
    yield "-Inf", infinity(negative=True)
    yield "NaN, either sign", NAN
    smallest = exact.magnitudes(fmt)[1]
    yield "smallest positive value", number(smallest)
    yield "half of it: a tie with 0", number(smallest / 2)
    yield "the float32 after it", number(next_float32(smallest / 2))
    yield "minus half of it", number(-smallest / 2)
    yield "-0", Number(negative=True, magnitude=Fraction(0))


def _table_inputs(fmt: ElementFormat) -> Iterator[tuple[str, Number]]:
    first, last = Fraction(fmt.table[0]), Fraction(fmt.table[-1])
    middle = (first + Fraction(fmt.table[1])) / 2
    yield "largest value", number(last)
    yield "beyond it", number(2 * last)
    yield "smallest value", number(first)
    yield "beyond it", number(2 * first)
    yield "halfway between the two smallest: a tie", number(middle)
    yield "the float32 after it", number(next_float32(middle))
    yield "0", number(0)
    yield "-0", Number(negative=True, magnitude=Fraction(0))
    yield "+Inf", infinity(negative=False)
    yield "-Inf", infinity(negative=True)
    yield "NaN, either sign", NAN


def _exponent_borders(fmt: ElementFormat) -> str:
    top = exact.decode(fmt.max_code, fmt).value
    largest_float32 = (2 - TWO**-23) * TWO**127
    inputs = (
        ("a value", number(4)),
        ("between 2 and 4, below the middle", number(Fraction(5, 2))),
        ("the middle of 2 and 4: a tie", number(3)),
        ("the middle of 1 and 2: a tie", number(Fraction(3, 2))),
        ("negative: the sign is ignored", number(-4)),
        ("largest value", number(top)),
        ("the largest float32", number(largest_float32)),
        ("+Inf, -Inf", infinity(negative=False)),
        ("NaN, either sign", NAN),
        ("the middle of codes 0 and 1: a tie", number(3 * TWO**-128)),
        ("smallest value", number(TWO**-127)),
        ("below it", number(TWO**-149)),
        ("0, -0", number(0)),
    )
    rows = []
    for what, x in inputs:
        results = []
        for rounding in ("up", "down", "nearest_even"):
            codes = [encoded(x, fmt, overflow, rounding) for overflow in _POLICIES]
            shown = " / ".join(coded(code, fmt) for code in dict.fromkeys(codes))
            results.append(f"{shown} = {' / '.join(value_of(code, fmt) for code in dict.fromkeys(codes))}")
        rows.append((what, short(x), f"`{hex_text(x)}`", *results))
    note = "Where the two overflow policies differ, `saturate` stands before `ieee`.\n\n"
    return note + table(("input", "value", "hex float", "`up`", "`down`", "`nearest_even`"), rows, right=("value",))


# --- the values ------------------------------------------------------------------------------------------------------


def _values(fmt: ElementFormat) -> str:
    if fmt.bits <= 4:
        return _listed(fmt)
    if fmt.kind == "float":
        intro = "Row: high nibble of the code. Column: low nibble. Hex floats without their `0x`."
        return f"{intro}\n\n{block(_square(fmt))}\n\n### Steps\n\n{_steps(fmt)}"
    return f"Row: high nibble of the code. Column: low nibble.\n\n{block(_square(fmt))}"


def _square(fmt: ElementFormat) -> str:
    digits = "0123456789ABCDEF"
    rows = [
        (f"0x{digits[high]}_", *(_cell(16 * high + low, fmt) for low in range(16))) for high in range(fmt.codes // 16)
    ]
    return grid(("", *(f"_{digit}" for digit in digits)), rows)


def _cell(code: int, fmt: ElementFormat) -> str:
    value = exact.decode(code, fmt)
    if value.nan or not value.finite:
        return hex_text(value)
    if fmt.kind == "integer":
        return str(value.value)
    if fmt.kind == "exponent":
        return power(code - fmt.bias)
    if value.magnitude == 0:
        return "-0" if value.negative else "0"
    return hex_text(value).replace("0x", "")


def _listed(fmt: ElementFormat) -> str:
    rows = []
    for code in range(fmt.codes):
        value = exact.decode(code, fmt)
        rows.append((coded(code, fmt), fields(code, fmt), short(value), f"`{hex_text(value)}`"))
    values = table(("code", "bits", "value", "hex float"), rows, right=("value",))
    if fmt.kind in ("integer", "codebook"):
        return values
    intro = "Where a number lies halfway between two values, the even code wins."
    return f"{values}\n\n### Midpoints\n\n{intro}\n\n{_ties(fmt)}"


def _ties(fmt: ElementFormat) -> str:
    steps = exact.magnitudes(fmt)[: fmt.max_code + 1]
    rows: list[Sequence[str]] = []
    for lower, (a, b) in enumerate(pairwise(steps)):
        middle = number((a + b) / 2)
        winner = encoded(middle, fmt)
        rows.append((short(middle), f"{coded(lower, fmt)} = {value_of(lower, fmt)}",
                     f"{coded(lower + 1, fmt)} = {value_of(lower + 1, fmt)}",
                     f"{coded(winner, fmt)} = {value_of(winner, fmt)}"))  # fmt: skip
    return table(("midpoint", "below", "above", "goes to"), rows, right=("midpoint",))


def _steps(fmt: ElementFormat) -> str:
    """Between which values the codes are how far apart: one row for each exponent field."""
    rows = []
    for exponent in range(1 << fmt.exponent_bits):
        codes = [
            c for c in range(exponent << fmt.mantissa_bits, exponent + 1 << fmt.mantissa_bits) if c <= fmt.max_code
        ]
        if not codes:
            continue
        first, last = (short(exact.decode(code, fmt)) for code in (codes[0], codes[-1]))
        step = power(max(exponent, 1) - fmt.bias - fmt.mantissa_bits)
        rows.append((f"{coded(codes[0], fmt)} .. {coded(codes[-1], fmt)}", str(exponent), first, last, step))
    header = ("codes", "e", "from", "to", "apart")
    return "Zero and the positive values, by exponent field.\n\n" + table(
        header, rows, right=("e", "from", "to", "apart")
    )


def summary() -> str:
    """The formats side by side, for the index."""
    rows = [
        (
            f"[`{fmt.name}`](elements/{fmt.name}.md)",
            str(fmt.bits),
            value_of(fmt.max_code, fmt),
            short(number(Fraction(fmt.min_normal))) if fmt.kind == "float" else "",
            short(number(Fraction(fmt.min_subnormal))),
            ", ".join(coded(code, fmt) for code in fmt.inf_codes) or "none",
            ", ".join(coded(code, fmt) for code in fmt.nan_codes) or "none",
        )
        for fmt in ELEMENTS.values()
    ]
    header = ("format", "bits", "largest", "smallest normal", "smallest positive", "Inf", "NaN")
    return table(header, rows, right=header[1:5])


def policies() -> str:
    """What each format makes of the inputs that need a policy, for the index."""
    rows = []
    for fmt in ELEMENTS.values():
        rounding = fmt.roundings[0]
        minus_zero = Number(negative=True, magnitude=Fraction(0))
        nan = encoded(NAN, fmt, rounding=rounding)
        cells = [_both_signs(fmt, overflow, rounding) for overflow in _POLICIES]
        zero = encoded(minus_zero, fmt, rounding=rounding)
        rows.append((f"`{fmt.name}`", *cells, _ieee_from(fmt), f"{coded(nan, fmt)} = {value_of(nan, fmt)}",
                     f"{coded(zero, fmt)} = {value_of(zero, fmt)}"))  # fmt: skip
    header = ("format", "±Inf, `saturate`", "±Inf, `ieee`", "`ieee` overflows", "NaN", "-0")
    return table(header, rows)


def _both_signs(fmt: ElementFormat, overflow: str, rounding: str) -> str:
    codes = [encoded(infinity(negative), fmt, overflow, rounding) for negative in (False, True)]
    return ", ".join(coded(code, fmt) for code in dict.fromkeys(codes))


def _ieee_from(fmt: ElementFormat) -> str:
    """From which magnitude on `ieee` leaves the finite codes."""
    if fmt.always_saturates:
        return "never: it saturates"
    largest, beyond = exact.magnitudes(fmt)[-2:]
    if fmt.kind == "exponent":
        return f"where rounding passes {power(127)}"
    middle = (largest + beyond) / 2
    reached = encoded(number(middle), fmt, "ieee") != fmt.max_code
    return f"{'from' if reached else 'above'} {hex_float(float(middle)) if middle.denominator > 1 else middle}"
