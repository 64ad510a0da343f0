"""The explorer: one HTML page without a request, which searches tables of decision borders found by asking the codecs.

Every border is the float64 where the golden codec's answer changes, and the exact twin must turn at the same real
number: the page cannot round otherwise than the codecs do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import kvformat
from kvformat.cli.explanation import code_json
from kvformat.cli.numerals import decimal_text
from kvformat.elements import exact
from kvformat.elements.exact import Number
from kvformat.elements.formats import ELEMENTS, ElementFormat
from kvformat.layouts import LAYOUTS, Layout, Region, layout
from kvformat.layouts.entry import Entry, Form

SOURCES = Path(__file__).resolve().parents[1] / "explorer"
_AUTHORITIES = Path(__file__).resolve().parents[2] / "spec" / "vectors" / "elements" / "authorities.json"
_SCRIPTS = ("numbers.js", "elements.js", "pages.js", "main.js")
_HAIR = Fraction(1, 2**1200)
#: the pages one can choose and their least block size; larger ones, for layouts whose swizzles need them, in turn
_SIZES = (({"num_kv_heads": 2, "head_size": 64}, 4), ({"num_kv_heads": 8, "head_size": 128}, 16))
_BLOCK_SIZES = (4, 16, 32, 64, 128)


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    data = {"formats": [_format(fmt) for fmt in ELEMENTS.values()], "pages": list(_pages())}
    parts = {
        "style": (SOURCES / "explorer.css").read_text(encoding="utf-8"),
        "data": json.dumps(data, separators=(",", ":"), allow_nan=False).replace("</", "<\\/"),
        "script": "\n".join((SOURCES / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    }
    page = (SOURCES / "explorer.html").read_text(encoding="utf-8")
    for name, text in parts.items():
        assert page.count(f"/*{name}*/") == 1
        page = page.replace(f"/*{name}*/", text)
    return {"explorer.html": page}


# --- element formats -------------------------------------------------------------------------------------------------


def _format(fmt: ElementFormat) -> dict[str, Any]:
    overflows = ("saturate",) if fmt.always_saturates else ("saturate", "ieee")
    return {
        "name": fmt.name,
        "kind": fmt.kind,
        "digits": fmt.digits,
        "negativeZero": fmt.sign_bit if fmt.has_negative_zero else 0,
        "roundings": list(fmt.roundings),
        "overflows": list(overflows),
        "nan": fmt.nan_input_code,
        "codes": [_code(code, fmt) for code in range(fmt.codes)],
        "steps": _steps(fmt),
        "tables": {
            f"{rounding}/{overflow}": [_table(fmt, rounding, overflow, negative) for negative in (False, True)]
            for rounding in fmt.roundings
            for overflow in overflows
        },
        "authorities": _authorities(fmt),
    }


def _code(code: int, fmt: ElementFormat) -> list[str]:
    shown = code_json(code, fmt)
    return [shown["code"], shown["bits"], shown["value"], shown["hex"]]


def _dyadic(x: Fraction) -> list[Any]:
    """A dyadic fraction as integer, in decimal, and exponent of two: [m, e] is m * 2^e."""
    assert x.denominator & (x.denominator - 1) == 0
    return [str(x.numerator), 1 - x.denominator.bit_length()]


def _steps(fmt: ElementFormat) -> list[list[Any]]:
    """Every finite value, ascending, and the midpoint to the next one: [m, e, text, code, midpoint's text]."""
    codes = {}
    for code in range(fmt.codes):
        value = exact.decode(code, fmt)
        if value.finite and not (value.value == 0 and value.negative):
            codes[value.value] = code
    values = sorted(codes)
    middles = [decimal_text(exact.number((a + b) / 2)) for a, b in pairwise(values)]
    return [
        [*_dyadic(value), decimal_text(exact.number(value)), codes[value], middle]
        for value, middle in zip(values, [*middles, ""], strict=True)
    ]


def _table(fmt: ElementFormat, rounding: str, overflow: str, negative: bool) -> dict[str, Any]:
    """How magnitudes of one sign are encoded: the code of 0, of Inf, and [m, e, closed, code] of each border.

    Above a border, and on it where it is closed (1), the code is the one that it names. The golden codec is asked at
    every value and midpoint and one float64 beside it; codes grow with magnitudes, so nothing changes in between.
    """
    points = _turning_points(fmt)
    at = np.array([float(point) for point in points])
    sign = -1.0 if negative else 1.0
    policy = {"rounding": rounding, "overflow": overflow}

    def golden(x: Any) -> list[int]:
        codes = kvformat.encode(sign * np.asarray(x, np.float64), fmt.name, **policy)
        found: list[int] = (codes.view(np.uint8) & np.uint8(fmt.codes - 1)).tolist()
        return found

    zero, infinity, largest = golden([0.0, math.inf, np.finfo(np.float64).max])
    below, on, above = golden(np.nextafter(at, 0)), golden(at), golden(np.nextafter(at, np.inf))
    assert [*below, largest] == [zero, *above], (fmt.name, rounding, overflow)
    borders = []
    for point, before, code, after in zip(points, below, on, above, strict=True):
        around = (point - _HAIR, point, point + _HAIR)
        exactly = [exact.encode(Number(negative, size), fmt, **policy) for size in around]
        assert exactly == [before, code, after], (fmt.name, rounding, overflow, point)
        if before != after:
            assert code in (before, after)
            borders.append([*_dyadic(point), int(code == after), after])
    return {"zero": zero, "infinity": infinity, "borders": borders}


def _turning_points(fmt: ElementFormat) -> list[Fraction]:
    """Every magnitude and every midpoint, that with 0 included: positive, ascending, each exact in float64."""
    steps = sorted({Fraction(0), *exact.magnitudes(fmt)})
    points = sorted({*steps, *((a + b) / 2 for a, b in pairwise(steps)), *exact.midpoints(fmt)} - {Fraction(0)})
    assert all(Fraction(float(point)) == point for point in points)
    return points


def _authorities(fmt: ElementFormat) -> dict[str, list[str]]:
    """Of each converter that was run: where its runs of equal codes begin among float32 patterns, and their codes."""
    groups = json.loads(_AUTHORITIES.read_text(encoding="utf-8"))["testGroups"]
    runs = next((group["runs"] for group in groups if group["format"] == fmt.name), {})
    return {name: [f"{start}{int(code, 16):02X}" for start, code in each] for name, each in runs.items()}


# --- pages -----------------------------------------------------------------------------------------------------------


def _pages() -> Iterator[dict[str, Any]]:
    for entry in LAYOUTS.values():
        for mode, form in entry.modes:
            for order in form.orders:
                for choice in [name for name, _ in form.v_scales] or [None]:
                    yield from map(_page, filter(is_shown, _layouts(entry, form, mode, order, choice)))


def _layouts(entry: Entry, form: Form, mode: str, order: str, choice: str | None) -> Iterator[Layout]:
    """A small page, and one of the usual size where the layout leaves a choice."""
    fixed = {"num_kv_heads": form.num_kv_heads, "head_size": form.head_size}
    for size, least in _SIZES[:1] if form.num_kv_heads else _SIZES:
        asked = {**size, **{name: count for name, count in fixed.items() if count}}
        for block_size in filter(lambda each: each >= least, _BLOCK_SIZES):
            try:
                yield layout(entry.name, mode=mode, order=order, v_scales=choice, block_size=block_size, **asked)
            except kvformat.InputError:
                continue
            break
        else:
            raise AssertionError(f"{entry.name} in mode {mode}: no page of {asked}")


def is_shown(made: Layout) -> bool:
    """Whether the explorer reads such pages: codes whole and in the order of their dims, one parameter a group."""
    return all(
        region.in_column_order and not region.high_first and not region.first_bit and region.part in ("code", "scale")
        for region in made.regions
    )


def _page(made: Layout) -> dict[str, Any]:
    return {
        "spec": made.spec,
        "bytes": made.page_bytes,
        "recipe": made.recipe,
        "regions": [_region(region) for region in made.regions],
    }


def _region(region: Region) -> dict[str, Any]:
    assert not region.high_first
    return {
        "name": region.name,
        "side": region.side,
        "part": region.part,
        "bits": region.bits,
        "offset": region.offset,
        "counts": [region.slots, region.heads, region.columns],
        "digits": [[list(digit) for digit in axis] for axis in (region.slot, region.head, region.column)],
        "dimsPerEntry": region.dims_per_entry,
        "firstDim": region.first_dim,
    }
