"""`quantize`: from K or V to codes and scales by a recipe, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvformat.elements import threads
from kvformat.elements.codec import float_dtype, native, typed
from kvformat.elements.formats import element
from kvformat.elements.static import static
from kvformat.errors import InputError
from kvformat.recipes import engine
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.program import Level, Recipe
from kvformat.recipes.rows import prepared, restored

_DTYPES = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}


@dataclass(frozen=True)
class Quantized:
    """Codes and scales as a recipe makes them, unpacked.

    codes: x's shape (tokens, heads, head_dim), int8 for int8 / int4, else uint8; mode none: the values in its dtype.
    scales: fp8_per_tensor float32 (1,); per_token_head float32 (tokens, heads); nvfp4 e4m3fn codes uint8 (tokens,
    heads, head_dim // 16); mode none: float32 (0,). global_scale: float32, 1.0 where the mode has none.
    """

    codes: NDArray[Any]
    scales: NDArray[Any]
    global_scale: np.float32
    recipe: Recipe

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The values (tokens, heads, head_dim): float32 arithmetic, then rounded once to `dtype`."""
        return dequantize(self, dtype)


def quantize(x: ArrayLike, recipe: str | Recipe, *, scale: ArrayLike | None = None) -> Quantized:
    """Quantize K or V by a recipe, bit for bit.

    x: (tokens, heads, head_dim), float32, float16 or bfloat16, any strides; widened to float32 exactly. recipe: a mode
    name (= its golden recipe), a recipe name or a `Recipe`. scale: the per-tensor scale (the decode multiplier) of a
    recipe that has one, rounded once to float32 and then finite and > 0; without it, it is computed from x.

    Raises InputError for another dtype (float64 included) or shape, no elements, a head_dim that does not divide into
    the recipe's blocks, or a scale that the recipe does not take.
    """
    values = checked(x)
    how = find(recipe).for_input(values.dtype.name)
    if how.element is None:
        if scale is not None:
            raise InputError(f"{how.name} takes no scale")
        return Quantized(values.copy(), np.zeros(0, np.float32), np.float32(1), how)
    given = None if scale is None else given_scale(scale, how)
    if how.prepare:
        values = prepared(how.prepare, values.astype(np.float32)).astype(values.dtype)
    rows = _rows(values)
    outer, stored = _outer_scales(how, values, rows, given)
    return _quantize(how, values, rows, outer, stored)


def given_scale(scale: ArrayLike, recipe: Recipe) -> np.float32:
    """A per-tensor scale as a recipe takes it. Raises InputError if it does not, or if it is not finite and > 0."""
    if not any(level.may_be_given for level in recipe.levels):
        raise InputError(f"{recipe.name} computes its scales from x; it takes no scale")
    array = native(scale, "scale")
    if array.size != 1 or (array.dtype.kind not in "fiu" and array.dtype != ml_dtypes.bfloat16):
        raise InputError(f"a scale is one number, of shape () or (1,); got shape {array.shape} of {array.dtype}")
    with np.errstate(over="ignore"):
        value = np.float32(array.reshape(())[()])
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"a scale must be finite and > 0 in float32; got {value}")
    return value


def checked(x: ArrayLike, what: str = "x") -> NDArray[Any]:
    """The native array (tokens, heads, head_dim) of a dtype that can be quantized. Raises InputError."""
    array = native(x, what)
    if array.dtype.name not in _DTYPES:
        raise InputError(f"{what} must be float32, float16 or bfloat16; got {array.dtype}")
    if array.ndim != 3:
        raise InputError(f"{what} must have shape (tokens, heads, head_dim); got {array.shape}")
    if array.size == 0:
        raise InputError(f"{what} has no elements: shape {array.shape}")
    return array


def statistics(level: Level, x: NDArray[Any]) -> NDArray[np.float32]:
    """The reductions of a per-tensor level over x: float32 (reductions,). Parts of a tensor combine by np.maximum."""
    parts: NDArray[np.float32] = _row_statistics(level, _rows(x), x.dtype.name).max(axis=0)
    return parts


def tensor_scale(level: Level, stats: NDArray[np.float32]) -> np.float32:
    """The scale of a per-tensor level from the statistics of the whole tensor."""
    return np.float32(_scales_of(level, (), np.zeros((1, 0), np.float32), stats[None])[0])


def _rows(x: NDArray[Any]) -> NDArray[Any]:
    # (tokens * heads, head_dim) bit patterns; copies only what is strided in a way that rows cannot express
    bits = (
        x.view(_DTYPES[x.dtype.name])
        if x.strides[-1] == x.itemsize
        else np.ascontiguousarray(x).view(_DTYPES[x.dtype.name])
    )
    return bits.reshape(-1, x.shape[-1])


def _row_statistics(level: Level, rows: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    plan = static(engine.ReducePlan(dtype, level.program.reductions))
    stats = np.empty((len(rows), len(level.program.reductions)), np.float32)
    threads.over(len(rows), rows.size, lambda a, b: engine.reduce_rows(plan, rows[a:b], stats[a:b]))
    return stats


def _scales_of(level: Level, names: tuple[str, ...], outer: Any, stats: NDArray[np.float32]) -> NDArray[Any]:
    stored = np.empty(len(stats), _stored_dtype(level))
    engine.scale_groups(static(engine.ScalePlan(names, level)), outer, stats, stored)
    return stored


def _stored_dtype(level: Level) -> Any:
    return np.float32 if level.store == "float32" else np.uint8


def _decoded(level: Level, stored: NDArray[Any]) -> NDArray[np.float32]:
    if level.store == "float32":
        return stored
    values: NDArray[np.float32] = element(level.storing.attributes[0]).values()[stored]
    return values


def _outer_scales(
    how: Recipe, x: NDArray[Any], rows: NDArray[Any], given: np.float32 | None
) -> tuple[NDArray[np.float32], NDArray[Any]]:
    """The values of the outer scales for every row, float32 (rows, outer levels), and the last level as stored."""
    tokens, heads, _ = x.shape
    outer = np.empty((tokens, heads, len(how.outer)), np.float32)
    stored: NDArray[Any] = np.zeros(0, np.float32)
    for index, level in enumerate(how.outer):
        if given is not None and level.may_be_given:
            stored = np.full(1, given, np.float32)
            outer[..., index] = given
            continue
        shared = (level.granularity.shares_tokens, level.granularity.shares_heads)
        over = tuple(axis for axis, does in enumerate(shared) if does)
        stats = _row_statistics(level, rows, x.dtype.name).reshape(tokens, heads, -1).max(axis=over, keepdims=True)
        grid = stats.shape[:2]
        groups = grid[0] * grid[1]
        before = outer[: grid[0], : grid[1], :index].reshape(groups, index)
        names = tuple(each.name for each in how.outer[:index])
        stored = _scales_of(level, names, np.ascontiguousarray(before), stats.reshape(groups, -1))
        outer[..., index] = _decoded(level, stored).reshape(grid)
    return outer.reshape(len(rows), len(how.outer)), stored


def _quantize(
    how: Recipe, x: NDArray[Any], rows: NDArray[Any], outer: NDArray[np.float32], stored: NDArray[Any]
) -> Quantized:
    tokens, heads, dims = x.shape
    names = tuple(level.name for level in how.outer)
    plan = static(engine.RowPlan(x.dtype.name, names, how.inner, how.code))
    codes = np.empty(rows.shape, np.uint8)
    if how.inner is None:
        threads.over(len(rows), rows.size, lambda a, b: engine.encode_rows(plan, rows[a:b], outer[a:b], codes[a:b]))
        scales = stored
        shared = np.float32(1)
    else:
        columns = _columns(how, how.inner, dims)
        scales = np.empty((len(rows), columns), _stored_dtype(how.inner))
        threads.over(
            len(rows),
            rows.size,
            lambda a, b: engine.quantize_rows(plan, rows[a:b], outer[a:b], codes[a:b], scales[a:b]),
        )
        scales = scales.reshape((tokens, heads, columns) if how.inner.granularity.dims else (tokens, heads))
        shared = np.float32(outer[0, -1]) if how.outer else np.float32(1)
    assert how.element is not None
    return Quantized(typed(codes, element(how.element)).reshape(x.shape), scales, shared, how)


def _columns(how: Recipe, inner: Level, dims: int) -> int:
    shared = inner.granularity.dims
    if shared and dims % shared:
        raise InputError(f"{how.name} needs a head_dim that is a multiple of {shared}; got {dims}")
    return inner.granularity.columns(dims)


def dequantize(quantized: Quantized, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """The values that codes and scales stand for, by the recipe's value program; see `Quantized.dequantize`."""
    how, codes, out_dtype = quantized.recipe, quantized.codes, float_dtype(dtype)
    if how.element is None:
        return _rounded(codes, out_dtype)
    tokens, heads, dims = codes.shape
    assert how.element is not None
    fmt = element(how.element)
    rows = np.ascontiguousarray(codes).view(np.uint8).reshape(-1, dims) & np.uint8(fmt.codes - 1)
    outer: NDArray[np.float32] = np.full((tokens, heads, len(how.outer)), quantized.global_scale, np.float32)
    scales = np.ones((len(rows), 1), np.float32)
    if how.inner is None and how.outer:
        shared = how.outer[-1].granularity
        grid = (1 if shared.shares_tokens else tokens, 1 if shared.shares_heads else heads)
        outer[..., -1] = _decoded(how.outer[-1], quantized.scales).reshape(grid)
    if how.inner is not None:
        columns = how.inner.granularity.columns(dims)
        scales = np.ascontiguousarray(_decoded(how.inner, quantized.scales)).reshape(len(rows), columns)
    outer = outer.reshape(len(rows), len(how.outer))
    inner = (how.inner.name,) if how.inner else ()
    plan = static(engine.ValuePlan(tuple(level.name for level in how.outer), inner, how.value))
    table, values = fmt.values(), np.empty(rows.shape, np.float32)
    threads.over(
        len(rows),
        rows.size,
        lambda a, b: engine.dequantize_rows(plan, rows[a:b], table, outer[a:b], scales[a:b], values[a:b]),
    )
    return _rounded(restored(how.prepare, values).reshape(tokens, heads, dims), out_dtype)


def _rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is Inf; NaN payloads may narrow
        return values.astype(dtype)
