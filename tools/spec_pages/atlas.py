"""The atlas: who does what. Every recipe of a mode on the inputs that tell them apart, run through the exact twin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvformat.elements.formats import element
from kvformat.recipes import exact
from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.program import Recipe
from spec_pages import vendors
from spec_pages.text import page, table, wrap

_NAN, _INF = float("nan"), float("inf")
_TIES = (0.25, -0.25, 0.75, -0.75, 1.25, -1.25, 1.75, -1.75, 2.5, -2.5, 3.5, -3.5, 5, -5, 6, -0.0)

#: what an input is, its first elements (the rest are +0), and what it shows
_BLOCKS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("16 times +0", (0.0,) * 16),
    ("16 times -0", (-0.0,) * 16),
    ("every tie of e2m1fn, and -0", _TIES),
    ("amax 6 * 2^-10, a tie of the block scale with 0", tuple(6 * 2.0**-10 * f for f in (1, 0.5, -1, 1 / 6, 0.25))),
    ("amax 4.5 * 2^-9, block scale 0.75 * 2^-9", tuple(4.5 * 2.0**-9 * f for f in (1, 0.5, -1, 0.25))),
    ("amax 6 * 2^-7, a subnormal block scale", tuple(6 * 2.0**-7 * f for f in (1, 0.5, -1, 1 / 6, 0.25))),
    ("1e-6, -1e-6, 5e-7", (1e-6, -1e-6, 5e-7)),
    ("1e-40, -1e-40", (1e-40, -1e-40)),
    ("an outlier of 1e4", (1e4, 1, -1, 100, -500, 2688, 3000, 0.5)),
    ("amax 6.375, block scale 1.0625: a tie", (6.375, -6.375, 1, -1)),
    ("amax 7.125, block scale 1.1875: a tie", (7.125, -7.125, 1, -1)),
    ("small negatives", (6, -0.1, -0.2, -0.0, 0.1, -1e-30)),
    ("NaN, 1, -2, 6", (_NAN, 1, -2, 6)),
    ("Inf, 1, -2, 6", (_INF, 1, -2, 6)),
    ("-Inf, 1, -2, 6", (-_INF, 1, -2, 6)),
)

_ROWS: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("zeros of both signs", (0.0, -0.0)),
    ("amax 127: ties of int8", (127, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5)),
    ("amax 448: ties of e4m3fn", (448, 1.0625, -1.0625, 1.1875, 2.0**-10, -(2.0**-10), 3 * 2.0**-10)),
    ("amax 1e-5, below a floor of 1e-6 * 127", (1e-5, -1e-5, 5e-6)),
    ("amax 3", (3, -3, 0.3, 0.7, -1.1)),
    ("amax 1e-43, a subnormal", (1e-43, -1e-43)),
    ("NaN, 1, -2", (_NAN, 1, -2)),
    ("Inf, 1, -2", (_INF, 1, -2)),
)

_MODES = (
    ("nvfp4", 16, 1.0, _BLOCKS, "The per-tensor scale is 1.0, so that block scales alone differ."),
    ("fp8_per_tensor", 16, 1.0, _ROWS, "The scale is given as 1.0."),
    ("fp8_per_token_head", 16, None, _ROWS, "The first code byte follows the float32 scale."),
    ("int8_per_token_head", 16, None, _ROWS, "Codes in decimal after the float32 scale."),
)


def files() -> dict[str, str]:
    """Path under spec/ and text of the atlas."""
    sections = [_section(*mode) for mode in _MODES]
    return {"recipes/atlas.md": page("recipes/atlas.md", {"sections": "\n\n".join(sections)})}


def _section(mode: str, dims: int, scale: float | None, inputs: Any, note: str) -> str:
    found = [each for each in map(recipe, names()) if each.mode == mode and each.element is not None]
    parts = [f"## {mode}", wrap(note), _arithmetic(found)]
    for what, elements in inputs:
        x = np.zeros((1, 1, dims), np.float32)
        x[0, 0, : len(elements)] = elements
        parts += [f"### {what}", _outcomes(found, x, scale, len(elements))]
    return "\n\n".join(parts)


def _arithmetic(found: list[Recipe]) -> str:
    rows = []
    for each in found:
        scales = "; ".join(_flat(level.program.text) for level in each.levels)
        rows.append((_link(each), f"`{scales}`", f"`{_flat(each.code.text)}`", f"`{_flat(each.value.text)}`"))
    return table(("recipe", "scales", "code", "value"), rows)


def _flat(text: str) -> str:
    return "; ".join(line.strip() for line in text.splitlines() if line.strip())


def _link(of: Recipe) -> str:
    return f"[{of.name}]({vendors.path(of).removeprefix('recipes/')})"


def _outcomes(found: list[Recipe], x: Any, scale: float | None, shown: int) -> str:
    by_result: dict[tuple[str, str], list[str]] = {}
    for each in found:
        by_result.setdefault(_outcome(each, x, scale, shown), []).append(each.name)
    rows = [(f"`{stored}`", f"`{codes}`", ", ".join(who)) for (stored, codes), who in by_result.items()]
    return table(("scale", "codes", "who"), rows)


def _outcome(each: Recipe, x: Any, scale: float | None, shown: int) -> tuple[str, str]:
    codes, scales, _ = exact.quantize(x, each, _given(each, scale))
    assert each.element is not None
    inner = each.inner
    stored = scales.reshape(-1)[0] if scales.size else np.float32(1)
    in_floats = inner is None or inner.format.is_float
    nan = bool(np.isnan(stored) if inner is None else inner.format.is_nan(stored))
    number = np.format_float_scientific(stored, trim="-") if in_floats else f"{int(stored):02X}"
    said = "NaN" if nan else number
    return said, " ".join(_codes(codes[0, 0, : min(shown, 16)], each.element))


def _codes(codes: Any, name: str) -> Iterator[str]:
    fmt = element(name)
    for code in codes.tolist():
        yield str(code) if fmt.kind == "integer" else f"{code:0{fmt.digits}X}"


def _given(each: Recipe, scale: float | None) -> float | None:
    """The scale as the recipe takes it: where a library is given the tensor's amax, that of scale 1."""
    for level in each.levels:
        if level.may_be_given and scale is not None:
            return 2688.0 if level.multiplier == "amax" else scale
    return None
