"""Why a number becomes a code: its neighbours, the midpoint between them, and what the policies say at the edges."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from kvformat.cli.numerals import bits_text, code_text, decimal_text, hex_float
from kvformat.elements import exact
from kvformat.elements.exact import Number
from kvformat.elements.formats import ElementFormat
from kvformat.errors import InputError


@dataclass(frozen=True)
class Rung:
    """One step of the ladder around a number: a code, a midpoint between two codes, or the number itself."""

    what: str
    number: Number
    code: int | None = None


@dataclass(frozen=True)
class Explanation:
    """How one number is rounded to one code, and all that is needed to check it by hand."""

    fmt: ElementFormat
    number: Number
    code: int
    #: ascending: the value below, the number, the value above, and the midpoints between them
    ladder: tuple[Rung, ...]
    tie: bool
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain data. Numbers are strings: decimal, and hex floats, which are always exact."""
        return {
            "format": self.fmt.name,
            "number": decimal_text(self.number),
            **code_json(self.code, self.fmt),
            "exact": same(self.number, exact.decode(self.code, self.fmt)),
            "tie": self.tie,
            "ladder": [
                {"what": rung.what, "number": decimal_text(rung.number)}
                | ({} if rung.code is None else {"code": code_text(rung.code, self.fmt)})
                for rung in self.ladder
            ],
            "notes": list(self.notes),
        }


_TIES = {
    "nearest_up": "the larger one",
    "nearest_down": "the smaller one",
    "nearest_away": "the one farther from zero",
    "nearest_toward_zero": "the one nearer to zero",
}


def explain_number(number: Number, fmt: ElementFormat, *, overflow: str, rounding: str | None) -> Explanation:
    """How `number` is encoded. Raises InputError for a policy that the format does not know."""
    rounding = _rounding(fmt, rounding)
    if overflow not in ("saturate", "ieee"):
        raise InputError(f"unknown overflow {overflow!r}; known: ieee, saturate")
    code = exact.encode(number, fmt, overflow=overflow, rounding=rounding)
    if number.magnitude is None:
        notes = _special_notes(number, fmt)
        return Explanation(fmt, number, code, (Rung("given", number),), tie=False, notes=notes)
    placed = Number(negative=False, magnitude=number.magnitude) if fmt.kind == "exponent" else number
    ladder = _ladder(placed, fmt)
    midpoints = [rung.number.value for rung in ladder if rung.what == "midpoint"]
    tie = placed.value in midpoints and rounding.startswith("nearest")
    notes = (*_number_notes(number, code, fmt, tie, overflow, rounding), *_edge_notes(number, fmt))
    return Explanation(fmt, number, code, ladder, tie, notes)


def explain_code(code: int, fmt: ElementFormat) -> Explanation:
    """What a code stands for, and between which midpoints the numbers lie that are rounded to it."""
    number = exact.decode(code, fmt)
    if not number.finite:
        return Explanation(fmt, number, code, (Rung("code", number, code),), tie=False, notes=())
    return Explanation(fmt, number, code, _ladder(number, fmt), tie=False, notes=())


def code_json(code: int, fmt: ElementFormat) -> dict[str, str]:
    """A code and its value as strings."""
    value = exact.decode(code, fmt)
    hex_value = hex_float(float(value))
    return {"code": code_text(code, fmt), "bits": bits_text(code, fmt), "value": decimal_text(value), "hex": hex_value}


def same(a: Number, b: Number) -> bool:
    """Equal as numbers; a NaN equals a NaN, and the sign of zero does not count."""
    if a.finite and b.finite:
        return a.value == b.value
    return a == b


def _rounding(fmt: ElementFormat, rounding: str | None) -> str:
    known = ", ".join(fmt.roundings)
    if rounding is None and fmt.rounding_required:
        raise InputError(f"{fmt.name} has no default rounding; name one with --rounding: {known}")
    if rounding is not None and rounding not in fmt.roundings:
        raise InputError(f"{fmt.name} has no rounding {rounding!r}; known: {known}")
    return rounding or fmt.roundings[0]


def _ladder(number: Number, fmt: ElementFormat) -> tuple[Rung, ...]:
    """The values next to `number`, the one that it is among them, and the midpoints between them, ascending."""
    codes = _codes_by_value(fmt, negative=number.negative)
    values = sorted(codes)
    low, high = bisect_left(values, number.value), bisect_right(values, number.value)
    steps = [Rung("below", _signed(value, number), codes[value]) for value in values[:low][-1:]]
    if low < high:
        steps.append(Rung("given", number, codes[number.value]))
    steps += [Rung("above", _signed(value, number), codes[value]) for value in values[high:][:1]]
    halves = [Rung("midpoint", exact.number((a.number.value + b.number.value) / 2)) for a, b in pairwise(steps)]
    rungs = [*steps, *halves] if low < high else [*steps, *halves, Rung("given", number)]
    return tuple(sorted(rungs, key=lambda rung: rung.number.value))


def _codes_by_value(fmt: ElementFormat, *, negative: bool) -> dict[Fraction, int]:
    """Every finite value with its code; of the two zeros the one whose sign is asked for."""
    codes: dict[Fraction, int] = {}
    for code in range(fmt.codes):
        value = exact.decode(code, fmt)
        if value.finite and (value.value or value.negative == (negative and fmt.has_negative_zero)):
            codes[value.value] = code
    return codes


def _signed(value: Fraction, number: Number) -> Number:
    return exact.number(value) if value else Number(number.negative, Fraction(0))


def _number_notes(
    number: Number, code: int, fmt: ElementFormat, tie: bool, overflow: str, rounding: str
) -> tuple[str, ...]:
    notes = []
    if tie:
        why = "whose code is even" if rounding == "nearest_even" else _TIES[rounding]
        notes.append(f"a tie, halfway between two values: it goes to {code_text(code, fmt)}, {why}")
    single = exact.round_binary(number, exact.BINARIES["float32"])
    if not same(single, number):
        other = exact.encode(single, fmt, overflow=overflow, rounding=rounding)
        text = f"not a float32: the nearest one is {decimal_text(single)} ({hex_float(float(single))})"
        notes.append(text + (f", which becomes {code_text(other, fmt)}" if other != code else ", with the same code"))
    if fmt.kind == "exponent" and number.negative:
        notes.append("the sign is ignored")
    if fmt.negatives == "lowest" and number.negative and number.magnitude:
        notes.append(f"the format has no sign: a negative number becomes {code_text(code, fmt)} (0)")
    return tuple(notes)


def _special_notes(number: Number, fmt: ElementFormat) -> tuple[str, ...]:
    if not number.nan:
        return (_overflow_note(fmt),)
    code = fmt.nan_input_code
    return (f"a NaN becomes {code_text(code, fmt)} ({decimal_text(exact.decode(code, fmt))}), its sign dropped",)


def _edge_notes(number: Number, fmt: ElementFormat) -> tuple[str, ...]:
    """What is said only where it matters: past the largest finite value."""
    if number.negative and (fmt.signed_integer or fmt.kind == "codebook"):
        return (_overflow_note(fmt),) if number.value < Fraction(fmt.lowest) else ()
    if number.negative and fmt.negatives == "lowest":
        return ()
    return (_overflow_note(fmt),) if abs(number.value) > Fraction(fmt.max) else ()


def _overflow_note(fmt: ElementFormat) -> str:
    """The two overflow policies, and from where on they differ."""
    largest = f"{code_text(fmt.max_code, fmt)} ({decimal_text(exact.decode(fmt.max_code, fmt))})"
    if fmt.kind in ("integer", "codebook"):
        code = fmt.sign_bit if fmt.kind == "integer" else 0
        lowest = f"{code_text(code, fmt)} ({decimal_text(exact.decode(code, fmt))})"
        return f"overflow and Inf saturate to {largest} or {lowest}, whatever the policy"
    if fmt.always_saturates:
        return f"overflow and Inf saturate to {largest}, sign kept, whatever the policy"
    other = f"{code_text(fmt.overflow_code, fmt)} ({decimal_text(exact.decode(fmt.overflow_code, fmt))})"
    where = ""
    if fmt.kind == "float":
        # overflow is judged after rounding: halfway to the value that would come next
        half = exact.magnitudes(fmt)[-2:]
        edge = exact.number(sum(half) / 2)
        reached = exact.encode(edge, fmt, overflow="ieee") != fmt.max_code
        where = f" {'from' if reached else 'above'} {decimal_text(edge)}"
    sign = ", sign kept" if fmt.sign_bit else ""
    return f"overflow and Inf{sign}: saturate gives {largest}; ieee gives {other}{where}"
