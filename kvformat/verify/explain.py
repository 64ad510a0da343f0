"""Explains one difference: the input with its bits, the scale, the exact quotient, and what each code stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements import exact
from kvformat.elements.exact import Number, number
from kvformat.elements.formats import ElementFormat, element
from kvformat.recipes.exact import dequantize, evaluate
from kvformat.recipes.program import Operation, Program, Recipe, is_constant
from kvformat.recipes.quantizer import Quantized
from kvformat.recipes.vocabulary import WORDS

#: words that limit or round a quotient, or pick between it and something else; what lies before them is the quotient
_AFTER = ("encode", "round", "clamp", "select")


def explain_code(row: NDArray[Any], expected: Quantized, found: Quantized, head: int, dim: int) -> dict[str, Any]:
    """What is known of a code that differs where the scales of its head hold, else a scale would be the difference.

    row: the input of this (token, head), (head_dim,).
    """
    how, x = expected.recipe, row[dim]
    if how.element is None:
        return {
            "input": bits_of(x),
            "expected": bits_of(expected.codes[0, head, dim]),
            "found": bits_of(found.codes[0, head, dim]),
        }
    fmt = element(how.element)
    scales = _scales(expected, row.size, head, dim)
    codes = {"expected": int(expected.codes[0, head, dim]), "found": int(found.codes[0, head, dim])}
    return {
        "input": bits_of(x),
        "scale": _stored_scales(expected, scales, head, dim),
        "quotient": _quotient(how, scales, row, dim, fmt),
        "expected": _code(codes["expected"], scales, how, fmt),
        "found": _code(codes["found"], scales, how, fmt),
    }


def explain_scale(
    row: NDArray[Any], expected: Quantized, found: Quantized, head: int, column: int, part: str = "scale"
) -> dict[str, Any]:
    """What is known of a parameter that differs: the elements that share it, as far as they decide it."""
    inner = expected.recipe.in_page[part]
    width = row.size // inner.granularity.columns(row.size)
    group = row[column * width : (column + 1) * width].astype(np.float32)
    finite = np.where(np.isfinite(group), np.abs(group), np.float32(-1))
    top = int(np.argmax(finite))
    outer = {level.name: _outer_value(expected) for level in expected.recipe.outer}
    numbers = [number(float(each)) for each in group]
    quotient = None  # of several trials there is no one quotient; of a further parameter its program may be another's
    if not inner.trials and part == "scale":
        real, computed = (
            evaluate(inner.program, outer, numbers, rounding=rounds)[inner.name] for rounds in (False, True)
        )
        quotient = _before_rounding(real, computed, inner.format.element)
    return {
        "shared_by": [column * width, (column + 1) * width],
        "amax": None if finite[top] < 0 else {**bits_of(row[column * width + top]), "dim": column * width + top},
        "not_finite": int(np.count_nonzero(~np.isfinite(group))),
        "quotient": quotient,
        "expected": _scale(expected, head, column, part),
        "found": _scale(found, head, column, part),
    }


def bits_of(x: Any) -> dict[str, str]:
    """A float and its bits: {"value": "1.5", "bits": "0x3FC0", "dtype": "bfloat16"}."""
    width = x.dtype.itemsize
    bits = int(np.asarray(x).view(f"u{width}"))
    return {"value": _text(float(x)), "bits": f"0x{bits:0{2 * width}X}", "dtype": x.dtype.name}


def _text(x: float) -> str:
    # float32 and narrower values print shortest in float32's precision; every other float64 needs its own
    with np.errstate(over="ignore"):
        narrow = np.float32(x)
    return (str(narrow) if narrow == x or x != x else repr(x)).removesuffix(".0")  # noqa: PLR0124 NaN


def _scales(quantized: Quantized, dims: int, head: int, dim: int) -> dict[str, Number]:
    """The values of the scales that cover one element, by name."""
    how = quantized.recipe
    scales = {}
    for level in how.outer:
        scales[level.name] = _outer_value(quantized)
    for part, level in how.in_page.items():
        columns = level.granularity.columns(dims)
        stored = _parameters(quantized, part).reshape(1, -1, columns)[0, head, dim // (dims // columns)]
        scales[level.name] = number(float(level.format.values(stored)))
    return scales


def _parameters(quantized: Quantized, part: str) -> NDArray[Any]:
    return quantized.scales if part == "scale" else quantized.more[part]


def _outer_value(quantized: Quantized) -> Number:
    return number(float(quantized.global_scale if quantized.recipe.inner else quantized.scales[0]))


def _stored_scales(quantized: Quantized, scales: Mapping[str, Number], head: int, dim: int) -> dict[str, Any]:
    """The scales that cover one element as they are stored, by name: their bits, or their code."""
    stored: dict[str, Any] = {name: bits_of(np.float32(float(value))) for name, value in scales.items()}
    for part, level in quantized.recipe.in_page.items():
        width = quantized.codes.shape[2] // level.granularity.columns(quantized.codes.shape[2])
        stored[level.name] = _scale(quantized, head, dim // width, part)
    return stored


def _scale(quantized: Quantized, head: int, column: int, part: str) -> dict[str, Any]:
    inner = quantized.recipe.in_page[part]
    stored = _parameters(quantized, part).reshape(1, quantized.codes.shape[1], -1)[0, head, column]
    if inner.format.is_float:
        return bits_of(stored)
    return {"code": f"0x{int(stored):02X}", "value": _text(float(inner.format.values(stored)))}


def with_code(expected: Quantized, allowed: list[int], head: int, dim: int) -> Quantized:
    """What was expected of one token, with one code moved to the nearest of the allowed patterns, if there are any."""
    assert expected.recipe.element is not None
    codes = expected.codes.copy()
    patterns = codes.view(np.uint8)
    values = element(expected.recipe.element).values()
    code = int(patterns[0, head, dim]) % len(values)
    if allowed and code not in allowed:
        with np.errstate(invalid="ignore"):
            away = np.abs(values[allowed] - values[code])
        patterns[0, head, dim] = allowed[int(np.argmin(np.where(np.isnan(away), np.inf, away)))]
    return replace(expected, codes=codes)


def pattern_name(name: str, pattern: int) -> str:
    """A pattern of an element format as reports print its code."""
    fmt = element(name)
    return _name(pattern - fmt.codes if fmt.signed_integer and pattern >= fmt.codes // 2 else pattern, fmt)


def _name(code: int, fmt: ElementFormat) -> str:
    """A code as reports print it; bits that the format does not have are shown, not dropped."""
    return str(code) if fmt.kind == "integer" else f"0x{code:0{-(-max(fmt.bits, code.bit_length()) // 4)}X}"


def _code(code: int, scales: Mapping[str, Number], how: Recipe, fmt: ElementFormat) -> dict[str, Any]:
    pattern = code % fmt.codes
    name = _name(code, fmt)
    value = exact.round_binary(dequantize(pattern, scales, how), exact.BINARIES["float32"])
    return {"code": name, "element": _text(float(exact.decode(pattern, fmt))), "value": _text(float(value))}


def _quotient(
    how: Recipe, scales: Mapping[str, Number], row: NDArray[Any], dim: int, fmt: ElementFormat
) -> dict[str, Any] | None:
    """What the recipe rounds to a code, before rounding: in real arithmetic, and as its own operations give it."""
    if how.prepare:
        return None  # what is rounded is not this element
    last = _last_quotient(how.code)
    if last is None:
        return None
    until = replace(how.code, operations=how.code.operations[: last + 1])
    target = until.operations[last].target
    known: Mapping[str, Any] = {**scales, "x": number(float(row[dim]))}
    from_scale = _reads(until) - known.keys()
    if from_scale and how.inner and how.inner.trials:
        return None  # one of several candidates
    real, computed = (
        evaluate(until, {**known, **(_around(how, scales, row, dim, from_scale, rounding=rounds))}, rounding=rounds)[
            target
        ]
        for rounds in (False, True)
    )
    return {"operation": str(until.operations[last]), **_before_rounding(real, computed, fmt)}


def _reads(program: Program) -> set[str]:
    """The names that a program reads before it assigns them."""
    read: set[str] = set()
    assigned: set[str] = set()
    for operation in program.operations:
        read |= {name for name in operation.operands if not is_constant(name)} - assigned
        assigned.add(operation.target)
    return read


def _around(
    how: Recipe, scales: Mapping[str, Number], row: NDArray[Any], dim: int, names: set[str], *, rounding: bool
) -> Mapping[str, Any]:
    """These names as the program of the scale within the row left them: the scale before it was stored, say."""
    inner = how.inner
    if inner is None or not names:
        return {}
    width = row.size // inner.granularity.columns(row.size)
    start = dim // width * width
    group = [number(float(each)) for each in row[start : start + width].astype(np.float32)]
    outer = {level.name: scales[level.name] for level in how.outer}
    left = evaluate(inner.program, outer, group, rounding=rounding)
    return {name: left[name] for name in names}


def _before_rounding(real: Any, computed: Any, fmt: ElementFormat | None) -> dict[str, Any]:
    """A number that is rounded to `fmt` (None: to float32) next: exactly, and as float32 arithmetic gives it."""
    return {
        "exact": _exact_text(real),
        "computed": _text(float(computed)),
        "tie_between": fmt and _tie(computed, fmt),
        "exact_is_tie": fmt is not None and _tie(real, fmt) is not None,
        #: float32 arithmetic went over a border: the exact number has another code
        "codes_differ": fmt is not None and exact.encode(real, fmt) != exact.encode(computed, fmt),
    }


def _last_quotient(program: Program) -> int | None:
    from_x = {"x"}
    last = None
    for index, operation in enumerate(program.operations):
        if not from_x.intersection(operation.operands):
            continue
        from_x.add(operation.target)
        if operation.word not in _AFTER and WORDS[operation.word].result == "number" and _scales_x(operation):
            last = index
    return last


def _scales_x(operation: Operation) -> bool:
    return operation.word in ("div", "mul") and not all(map(is_constant, operation.operands))


def _exact_text(x: Number) -> str:
    if not x.finite:
        return _text(float(x))
    value = x.value
    as_float = Fraction(float(value))
    digits = f"{float(value):.17g}"
    return digits if as_float == value else f"{digits} (rounded; exactly {value.numerator}/{value.denominator})"


def _tie(x: Number, fmt: ElementFormat) -> list[str] | None:
    """The two neighbouring values that x lies exactly between, if it does."""
    if x.magnitude is None:
        return None
    values = sorted({v.value for v in (exact.decode(code, fmt) for code in range(fmt.codes)) if v.finite})
    for below, above in pairwise(values):  # what would come after the largest value does not exist
        if 2 * x.value == below + above:
            pair = [_text(float(below)), _text(float(above))]
            return pair[::-1] if x.negative else pair  # the one nearer to zero first
    return None
