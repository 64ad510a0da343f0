"""The NumPy reader: what the engine gives, without compiling a kernel first; for a few rows at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.codec import typed
from kvformat.elements.formats import element
from kvformat.recipes import quantizer
from kvformat.recipes.intervals import Interval, Value, kept, narrowed, patterns, points, read, run, written
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized


def quantize(x: NDArray[Any], recipe: Recipe, *, scale: float | None = None) -> Quantized:
    """Codes and scales of x (tokens, heads, head_dim), as `kvformat.quantize` gives them; arguments are not checked.

    A recipe that prepares rows, tries several scales or shares them across some rows only is left to the engine.
    """
    how = recipe.for_input(x.dtype.name)
    simple = how.within_rows and not how.prepare and not _partly_shared(how)
    if how.element is None or not simple or (how.inner and how.inner.trials):
        return quantizer.quantize(x, recipe, scale=scale)
    elements = x.astype(np.float32)
    known: dict[str, Value] = {}
    for level in how.outer:
        if scale is not None and level.may_be_given:
            known[level.name] = points(np.full((1, 1, 1), scale, np.float32))
        else:
            whole = elements.reshape(1, 1, -1)
            known[level.name] = narrowed(run(level.program, known, whole, bounds=False)[level.name])
    shared = [known[level.name] for level in how.outer]
    columns = how.inner.granularity.columns(x.shape[2]) if how.inner else 1
    groups = elements.reshape(-1, columns, x.shape[2] // columns)
    stored: NDArray[Any] = _number(shared[-1]).reshape(1) if shared else np.zeros(0, np.float32)
    more: dict[str, NDArray[Any]] = {}
    for level in how.group:
        known = run(level.program, known, groups, bounds=False)
        own = kept(level, known[level.name])
        known[level.name] = read(level, own)
        more[level.name] = written(level, own).reshape(*x.shape[:2], columns)
    if how.inner is not None:
        stored = more.pop(how.inner.name)
        stored = stored if how.inner.granularity.dims else stored.reshape(x.shape[:2])
    coded = run(how.code, {**known, "x": points(groups)}, groups, bounds=False)["c"]
    codes = typed(np.broadcast_to(patterns(coded, element(how.element)), groups.shape), element(how.element))
    outermost = np.float32(_number(shared[-1]).reshape(-1)[0]) if shared and how.inner else np.float32(1)
    return Quantized(codes.reshape(x.shape), stored, outermost, how, more)


def values(quantized: Quantized, codes: NDArray[np.uint8], dims: int) -> NDArray[np.float32]:
    """The numbers that other codes (rows, n) would stand for under the first scale of each row of `quantized`."""
    how = quantized.recipe
    assert how.element is not None
    known: dict[str, Value] = {"c": points(element(how.element).values()[codes])}
    for level in how.outer:
        shared = quantized.global_scale if how.inner else quantized.scales[0]
        known[level.name] = points(np.full((1, 1), shared, np.float32))
    if how.inner is not None:
        first = quantized.scales.reshape(len(codes), -1)[:, :1]
        known[how.inner.name] = points(how.inner.format.values(first))
    for name, each in quantized.more.items():
        if name in how.in_page:
            known[name] = points(how.in_page[name].format.values(each.reshape(len(codes), -1)[:, :1]))
    result = run(how.value, known, np.zeros((1, 1), np.float32), bounds=False)["v"]
    return _number(result).astype(np.float32).reshape(codes.shape)


def _partly_shared(how: Recipe) -> bool:
    return any(level.granularity.name != "per_tensor" for level in how.outer)


def _number(value: Value) -> NDArray[Any]:
    assert isinstance(value, Interval)
    return value.low
