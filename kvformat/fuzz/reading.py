"""What codes and scales stand for, in plain NumPy: the value program of a recipe on a few rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.recipes.intervals import Interval, Value, points, run
from kvformat.recipes.quantizer import Quantized
from kvformat.recipes.rows import restored

Array = NDArray[Any]


def values(quantized: Quantized) -> Array:
    """What `quantized.dequantize()` gives, float32 (tokens, heads, head_dim), without compiling a kernel.

    Mode none: the stored values, in their own dtype. Scales outside the rows must be shared by the whole tensor.
    """
    how = quantized.recipe
    if how.element is None:
        return quantized.codes
    fmt = element(how.element)
    return scaled(quantized, fmt.values()[quantized.codes.view(np.uint8) & np.uint8(fmt.codes - 1)])


def scaled(quantized: Quantized, numbers: Array) -> Array:
    """What other numbers in the place of the codes' values would stand for, float32 (tokens, heads, head_dim)."""
    how = quantized.recipe
    tokens, heads, dims = numbers.shape
    columns = how.inner.granularity.columns(dims) if how.inner else 1
    known = scale_values(quantized, columns)
    known["c"] = points(numbers.reshape(-1, columns, dims // columns))
    result = run(how.value, known, np.zeros((1, 1, 1), np.float32), bounds=False)["v"]
    assert isinstance(result, Interval)
    shape = (tokens * heads, columns, dims // columns)
    rows = np.broadcast_to(result.low, shape).astype(np.float32).reshape(-1, dims)
    return restored(how.prepare, rows).reshape(tokens, heads, dims)


def scale_values(quantized: Quantized, columns: int) -> dict[str, Value]:
    """The numbers that the scales stand for, by name; those within rows (rows, columns, 1)."""
    how = quantized.recipe
    known: dict[str, Value] = {}
    for level in how.outer:
        shared = quantized.global_scale if how.inner else quantized.scales[0]
        known[level.name] = points(np.full((1, 1, 1), shared, np.float32))
    if how.inner is not None:
        stored = quantized.scales.reshape(-1, columns, 1)
        known[how.inner.name] = points(how.inner.format.values(stored))
    return known


def tokens_of(quantized: Quantized, kept: NDArray[np.bool_]) -> Quantized:
    """The codes and page scales of some tokens."""
    scales = quantized.scales[kept] if quantized.recipe.inner else quantized.scales
    return replace(quantized, codes=quantized.codes[kept], scales=scales)


def differing(expected: Array, found: Array) -> NDArray[np.bool_]:
    """Where floats of one dtype differ in a bit; two NaN are equal."""
    unsigned = f"u{expected.dtype.itemsize}"
    wrong: NDArray[np.bool_] = expected.view(unsigned) != found.view(unsigned)
    if wrong.any():
        with np.errstate(invalid="ignore"):
            wrong &= ~(np.isnan(expected) & np.isnan(found))
    return wrong
