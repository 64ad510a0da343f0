"""Codes beside scales that are not the expected ones: which codes fit the scale that is there, which are allowed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.recipes.admissible import codes_by, point
from kvformat.recipes.intervals import Value
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized
from kvformat.verify.report import Tally

#: codes of a tally that are looked at: the interval reader takes about a second for a million
_LOOKED_AT = 1 << 20
#: elements that the interval reader is given at once: it keeps some twenty arrays of them
_CHUNK = 1 << 16


def outer_values(how: Recipe, scale: np.float32 | None) -> dict[str, Value]:
    """The scales beside the pages by name."""
    return {} if scale is None else {level.name: point(np.float32(scale)) for level in how.outer}


def count_consistent(
    x: NDArray[Any], found: Quantized, scale: np.float32 | None, wrong: dict[str, NDArray[np.bool_]], tally: Tally
) -> None:
    """Count the wrong codes beside wrong scales, and how many of them are right for the scale that is there.

    x: (tokens, heads, dims), the input; wrong: masks by part, (tokens, heads, columns) and (tokens, heads, dims). A
    writer that errs in the scale alone leaves codes that differ and yet fit: the fault is one, not thousands.
    """
    how, dims = found.recipe, x.shape[2]
    columns = wrong["scale"].shape[2]
    if how.inner is None or not columns or not wrong["scale"].any() or not wrong["code"].any():
        return
    beside = wrong["code"] & np.repeat(wrong["scale"], dims // columns, axis=2)
    beside = beside.reshape(-1, dims)
    rows = np.flatnonzero(beside.any(axis=1))[: max(0, _LOOKED_AT - tally.beside) // dims]
    step = max(1, _CHUNK // dims)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        elements = x.reshape(-1, dims)[part].astype(np.float32)
        codes = found.codes.view(np.uint8).reshape(-1, dims)[part]
        scales = found.scales.reshape(-1, columns)[part]
        fits = codes_by(elements, how, outer_values(how, scale), codes, scales)
        tally.beside += int(np.count_nonzero(beside[part]))
        tally.consistent += int(np.count_nonzero(beside[part] & fits))


def allowed_codes(row: NDArray[Any], found: Quantized, scale: np.float32 | None, head: int, dim: int) -> list[int]:
    """The codes that an approximate recipe allows one element, beside the scales that are there.

    row: the input of this (token, head), (dims,); found: one token. The codes are patterns, in ascending order.
    """
    how = found.recipe
    assert how.element is not None
    candidates = np.arange(element(how.element).codes, dtype=np.uint8)
    codes = np.repeat(found.codes[0, head].view(np.uint8)[None], len(candidates), axis=0)
    codes[:, dim] = candidates
    rows = np.repeat(row[None].astype(np.float32), len(candidates), axis=0)
    columns = found.scales.reshape(found.codes.shape[1], -1)[head] if how.inner else np.zeros(0, np.float32)
    scales = np.repeat(columns[None], len(candidates), axis=0)
    good = codes_by(rows, how, outer_values(how, scale), codes, scales)
    return [int(code) for code in candidates[good[:, dim]]]
