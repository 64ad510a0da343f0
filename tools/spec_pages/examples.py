"""Worked examples of the recipes: inputs chosen to meet every special case, run by the exact twin and by the engine.

A page is written only if both agree bit for bit in codes, scales and values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvformat
from kvformat.elements import exact
from kvformat.elements.exact import Number, number
from kvformat.elements.formats import element
from kvformat.recipes import exact as twin
from kvformat.recipes.program import Program, Recipe
from spec_pages.numbers import coded, float32_bits, hex_text, short
from spec_pages.text import table

NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Example:
    """Rows of one token and head each, what they show, and the scale where one is given."""

    title: str
    text: str
    rows: tuple[tuple[float, ...], ...]
    scale: float | None = None


def padded(*values: float) -> tuple[float, ...]:
    """Values, then zeros up to a whole block of 16."""
    return (*values, *[0.0] * (-len(values) % 16))


_ORDINARY = Example("Ordinary numbers", "", ((0.3, -1.7, 2.5, 0.01),))
_ZERO = Example("A row of zeros", "A scale of 0 would divide 0 by 0; it is 1 instead.", ((0.0, -0.0, 0.0, -0.0),))

_FP8_TIES = (448.0, 1.0625, -1.1875, 2.0**-10)
_FP8_TIE_TEXT = (
    "The scale is 1. 1.0625 lies halfway between 1 (`0x38`) and 1.125 (`0x39`), -1.1875 halfway between -1.125 "
    "(`0xB9`) and -1.25 (`0xBA`), 2^-10 halfway between 0 and the smallest subnormal."
)
_SMALL_TEXT = "amax / {} is below 2^-150, half of the smallest float32: the quotient rounds to 0, and the scale is 1."

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "fp8_per_tensor": (
        Example(
            _ORDINARY.title, "Two rows share the scale of the tensor.", ((0.3, -1.7, 2.5, 0.01), (28.0, 0.0, -3.5, 1.0))
        ),
        Example("Ties", _FP8_TIE_TEXT, (_FP8_TIES,)),
        Example("Zeros only", _ZERO.text, _ZERO.rows),
        Example(
            "NaN and Inf",
            "Neither takes part in amax, which is 2 here.",
            ((1.0, NAN, -2.0, 0.5), (INF, -INF, 0.25, 0.0)),
        ),
        Example("A scale that underflows", _SMALL_TEXT.format(448), ((2.0**-142, -(2.0**-149), 0.0, 2.0**-145),)),
        Example(
            "A given scale",
            "The scale is given as 0.5: what lies beyond 448 * 0.5 = 224 saturates.",
            ((224.0, 225.0, -1000.0, 0.3),),
            0.5,
        ),
    ),
    "fp8_per_token_head": (
        _ORDINARY,
        Example("Ties", _FP8_TIE_TEXT, (_FP8_TIES,)),
        _ZERO,
        Example(
            "NaN and Inf",
            "Neither takes part in amax, which is 2 here.",
            ((1.0, NAN, -2.0, 0.5), (INF, -INF, 2.0, 0.0)),
        ),
        Example("A scale that underflows", _SMALL_TEXT.format(448), ((2.0**-142, -(2.0**-149), 0.0, 2.0**-145),)),
    ),
    "int8_per_token_head": (
        _ORDINARY,
        Example("Ties", "The scale is 1. Halves go to the even integer.", ((127.0, 0.5, 1.5, -2.5),)),
        _ZERO,
        Example(
            "NaN",
            "The scale of the row is NaN; its numbers are lost, the row after it is not.",
            ((1.0, NAN, -2.0, 0.5), (1.0, 0.0, -2.0, 0.5)),
        ),
        Example("Inf", "Inf does not take part in amax, which is 2 here.", ((INF, -INF, 2.0, 0.5),)),
        Example("A scale that underflows", _SMALL_TEXT.format(127), ((2.0**-144, -(2.0**-149), 0.0, 2.0**-145),)),
    ),
    "nvfp4": (
        Example(
            "Ordinary numbers",
            "g is computed from the tensor, here one block.",
            ((0.3, -1.7, 2.5, 0.01, 1.0, -0.5, 0.75, -2.0, 0.1, 0.2, -0.3, 0.4, -0.6, 0.8, 1.2, -1.6),),
        ),
        Example(
            "Ties",
            "g is given as 1 and amax is 6, so bs and d are 1: every midpoint of e2m1fn, with either sign.",
            ((6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -6.0),),
            1.0,
        ),
        Example(
            "Zeros only", "g would be 0 and is 1 instead. bs stays 0; the codes keep the signs.", (padded(0.0, -0.0),)
        ),
        Example(
            "NaN",
            "The block that holds the NaN is NaN; the block after it is untouched.",
            (padded(1.0, NAN, -2.0) + padded(1.0, 0.5, -2.0),),
        ),
        Example(
            "Inf",
            "Inf does not take part in amax, which is 3 in the first block. In the second block it is "
            "the only element that is not 0: bs is 0 there, and Inf becomes a zero with its sign.",
            (padded(INF, -INF, 3.0, 1.0) + padded(INF, -INF),),
        ),
        Example(
            "A block scale that underflows",
            "g is 1. In the second block amax / 6 is below 2^-10, half of the "
            "smallest e4m3fn value: bs is 0, and with it the block.",
            (padded(2688.0, 448.0) + padded(2.0**-8, -(2.0**-9)),),
        ),
    ),
}

#: inputs at which binary32 and exact arithmetic part
APART: dict[str, Example] = {
    "fp8_per_tensor": Example("", "", ((3.8125, -3.09375, 2.25, 2.15625),), 1 / 3),
    "fp8_per_token_head": Example("", "", ((-2.75, 0.515625, -1.40625, -0.125),)),
    "int8_per_token_head": Example("", "", ((2.96875, -5.9375, -2.09375, -1.59375),)),
    "nvfp4": Example("", "", ((-3.0, -7.0, 4.375, 5.25, -0.625, -5.375, -5.75, -2.0,
                               4.125, -3.0, -7.5, 3.125, 4.0, -5.125, 1.0, -1.625),)),
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """What a recipe makes of an example: codes (unsigned patterns), stored scales, and per element value and scale."""

    codes: NDArray[np.uint8]
    scales: NDArray[Any]
    shared: np.float32
    values: list[Number]
    multipliers: list[Number]


def run(recipe: Recipe, example: Example) -> Result:
    """The example in exact fractions. Raises AssertionError where the engine gives other bits."""
    x = np.array(example.rows, np.float32)[:, None, :]
    codes, scales, shared = twin.quantize(x, recipe, example.scale)
    engine = kvformat.quantize(x, recipe, scale=example.scale)
    for found, expected in ((engine.codes, codes), (engine.scales, scales), (engine.global_scale, shared)):
        assert _same(found, expected)
    patterns = codes.view(np.uint8)
    values, multipliers = [], []
    for place in np.ndindex(*x.shape):
        names = _scale_values(recipe, scales, shared, place)
        values.append(twin.dequantize(int(patterns[place]), names, recipe))
        factor = number(1)
        for value in names.values():
            factor = NAN_NUMBER if value.nan or factor.nan else number(factor.value * value.value)
        multipliers.append(factor)
    decoded = engine.dequantize().reshape(-1)
    assert _same(decoded, np.array([float(value) for value in values], np.float32))
    return Result(patterns, scales, shared, values, multipliers)


NAN_NUMBER = exact.NAN


def _same(a: Any, b: Any) -> bool:
    """Equal bit for bit, NaN as a class."""
    a, b = np.asarray(a), np.asarray(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a, b))
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.array_equal(np.signbit(a[~nan]), np.signbit(b[~nan])) and np.array_equal(a[~nan], b[~nan]))


def _scale_values(
    recipe: Recipe, scales: NDArray[Any], shared: np.float32, place: tuple[int, ...]
) -> dict[str, Number]:
    """The values of the scales of one element, by name."""
    token, head, dim = place
    last = recipe.levels[-1]
    if not last.granularity.within_row:
        return {last.name: number(float(scales[0]))}
    outer = {level.name: number(float(shared)) for level in recipe.outer}
    stored = scales[token, head, dim // last.granularity.dims] if last.granularity.dims else scales[token, head]
    return {**outer, last.name: number(float(last.format.values(stored)))}


def tables(recipe: Recipe, example: Example) -> str:
    """The scales of an example and, element by element, how the code arises and what it stands for."""
    result = run(recipe, example)
    assert recipe.element is not None
    fmt = element(recipe.element)
    width = len(example.rows[0])
    several = len(example.rows) > 1
    rows = []
    for index, (value, factor) in enumerate(zip(result.values, result.multipliers, strict=True)):
        token, dim = divmod(index, width)
        x = number(float(np.float32(example.rows[token][dim])))
        code = int(result.codes.reshape(-1)[index])
        cells = (
            f"`{hex_text(x)}`",
            _quotient(x, factor),
            coded(code, fmt),
            short(exact.decode(code, fmt)),
            short(value),
        )
        rows.append(([str(token)] if several else [], dim, short(x), cells))
    quotient = "x / (bs * g)" if len(recipe.levels) > 1 else "x / s"
    header = [*(["token"] if several else []), "dim", "x", "x in hex", quotient, "code", "code value", "decoded"]
    right = ("token", "dim", "x", quotient, "code value", "decoded")
    return f"{_scales(recipe, result, example)}\n\n{table(header, _merged(rows), right=right)}"


def _merged(rows: Sequence[tuple[list[str], int, str, tuple[str, ...]]]) -> list[list[str]]:
    """The rows, neighbors that differ in their dim alone joined into one."""
    merged: list[list[str]] = []
    first = 0
    for index, (token, dim, x, cells) in enumerate(rows):
        again = index and rows[index - 1][0] == token and rows[index - 1][2:] == (x, cells) and dim % 16
        if again:
            merged[-1][len(token)] = f"{first}..{dim}"
        else:
            first = dim
            merged.append([*token, str(dim), x, *cells])
    return merged


def _quotient(x: Number, factor: Number) -> str:
    if x.nan or factor.nan:
        return "nan"
    if factor.value == 0:
        return "none"
    return short(x if x.magnitude is None else Number(x.negative, x.magnitude / abs(factor.value)))


def _scales(recipe: Recipe, result: Result, example: Example) -> str:
    """The scales in words: name, value, bits."""
    lines = []
    if len(recipe.levels) > 1:
        lines.append(_scale_line("g", result.shared, example))
    last = recipe.levels[-1]
    if last.format.is_float:
        several = result.scales.size > 1
        for index, scale in enumerate(result.scales.reshape(-1)):
            lines.append(_scale_line(f"s of token {index}" if several else "s", scale, example))
    else:
        fmt = element(last.store)
        blocks = result.scales.reshape(-1)
        for index, code in enumerate(blocks):
            value = exact.decode(int(code), fmt)
            where = f"{last.name} of dims {16 * index}..{16 * index + 15}" if len(blocks) > 1 else last.name
            lines.append(f"- {where} = {coded(int(code), fmt)} = {short(value)}")
    return "\n".join(lines)


def _scale_line(name: str, scale: np.float32, example: Example) -> str:
    given = example.scale is not None and name in ("s", "g")
    x = number(float(scale))
    text = "" if x.nan else f" = `{hex_text(x)}`"
    return f"- {name} = {short(x)}{text}, bits `{float32_bits(scale)}`{', given' if given else ''}"


def quotients(recipe: Recipe, example: Example) -> list[Number]:
    """What the first division of the recipe's code program gives, element by element of the first row."""
    words = [operation.word for operation in recipe.code.operations]
    head = Program(recipe.code.operations[: words.index("div") + 1], recipe.code.precision)
    division = head.operations[-1].target
    x = np.array(example.rows[:1], np.float32)[:, None, :]
    _, scales, shared = twin.quantize(x, recipe, example.scale)
    found = []
    for place in np.ndindex(*x.shape):
        names: dict[str, twin.Value] = {**_scale_values(recipe, scales, shared, place), "x": number(float(x[place]))}
        quotient = twin.evaluate(head, names)[division]
        assert isinstance(quotient, Number)
        found.append(quotient)
    return found


def is_tie(x: Fraction, recipe: Recipe) -> bool:
    """Whether x is halfway between two values of the recipe's element format."""
    assert recipe.element is not None
    steps = exact.magnitudes(element(recipe.element))
    return any(a + b == 2 * abs(x) for a, b in pairwise(steps))
