"""The second opinion: whether the exact twin, which shares no code with the engine, says what the engine says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.exact import BINARIES, number, round_binary
from kvformat.elements.formats import element
from kvformat.fuzz import reading
from kvformat.recipes import exact
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.quantizer import Quantized

Array = NDArray[Any]


def agrees(x: Array, quantized: Quantized, scale: np.float32 | None) -> bool:
    """Whether the twin makes the same codes and scales of x; NaN as a class.

    Mode none: whether the stored values are x, rounded once. A recipe with approximate instructions is a set of
    results, which the twin does not give: there its bounds are the only judge.
    """
    how = quantized.recipe
    if how.element is None:
        stored = quantized.codes
        rounded = [round_binary(number(float(each)), BINARIES[stored.dtype.name]) for each in x.reshape(-1)]
        wanted = np.array([float(each) for each in rounded], np.float32).reshape(x.shape)
        return not reading.differing(wanted, stored.astype(np.float32)).any()
    if is_approximate(how):
        return True
    codes, scales, shared = exact.quantize(x, how, None if scale is None else float(scale))
    same_scales = (
        not reading.differing(scales.reshape(-1), quantized.scales.reshape(-1)).any()
        if how.inner is None or how.inner.format.is_float
        else _same(scales, quantized.scales, how.inner.format.name)
    )
    same_shared = not reading.differing(np.atleast_1d(shared), np.atleast_1d(quantized.global_scale)).any()
    return same_scales and same_shared and _same(codes, quantized.codes, how.element)


def reads(quantized: Quantized) -> bool:
    """Whether the twin reads the same values from codes and scales."""
    how = quantized.recipe
    if how.element is None or how.prepare:
        return True
    dims = quantized.codes.shape[2]
    columns = how.inner.granularity.columns(dims) if how.inner else 1
    scales = reading.scale_values(quantized, columns)
    found = reading.values(quantized).reshape(-1, dims)
    codes = quantized.codes.view(np.uint8).reshape(-1, dims) & np.uint8(element(how.element).codes - 1)
    for row, dim in np.ndindex(*codes.shape):
        known = {}
        for name, value in scales.items():
            several = np.broadcast_to(value.low, (len(codes), columns, 1))  # type: ignore[union-attr]
            known[name] = number(float(several[row, dim // (dims // columns), 0]))
        wanted = np.float32(float(exact.dequantize(int(codes[row, dim]), known, how)))
        if reading.differing(np.atleast_1d(wanted), found[row, dim : dim + 1]).any():
            return False
    return True


def _same(a: Array, b: Array, fmt: str) -> bool:
    nan = element(fmt).nan_codes
    return bool(np.all((a == b) | (np.isin(a, nan) & np.isin(b, nan))))
