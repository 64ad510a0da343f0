"""`quantize`: from K or V to codes and scales by a recipe, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvformat.elements import threads
from kvformat.elements.codec import float_dtype, native, typed
from kvformat.elements.formats import element
from kvformat.elements.static import static
from kvformat.errors import InputError
from kvformat.recipes import engine, grouping
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.program import Level, Recipe
from kvformat.recipes.rows import prepared, restored

_DTYPES = {"float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16}


@dataclass(frozen=True)
class Quantized:
    """Codes and quantization parameters as a recipe makes them, unpacked.

    codes: x's shape (tokens, heads, head_dim), int8 for signed integers, else uint8; mode none: the values in its
    dtype. scales: the first parameter of the groups: fp8_per_tensor float32 (1,); per_token_head float32 (tokens,
    heads); nvfp4 e4m3fn codes uint8 (tokens, heads, head_dim // 16); mode none: float32 (0,). global_scale: float32,
    1.0 where the mode has none. more: parameters that are not `scales`, by name, in their block shape. undefined: bool
    in block shape, the groups whose codes the library leaves as they were; None where it defines all.
    """

    codes: NDArray[Any]
    scales: NDArray[Any]
    global_scale: np.float32
    recipe: Recipe
    more: Mapping[str, NDArray[Any]] = field(default_factory=lambda: MappingProxyType({}))
    undefined: NDArray[np.bool_] | None = None

    @property
    def params(self) -> dict[str, NDArray[Any]]:
        """Every quantization parameter by name, as it is stored, in its block shape.

        The block shape says how many there are along (tokens, heads, head_dim): (1, 1, 1) for one per tensor, (tokens,
        heads, 1) per token and head, (tokens, heads, head_dim // 16) per block of 16; (n,) for runs. Codes of element
        formats are uint8 or int8.
        """
        how, shape = self.recipe, self.codes.shape
        main = how.inner or (how.outer[-1] if how.outer else None)
        params: dict[str, NDArray[Any]] = {}
        for level in how.levels:
            if level.name in self.more:
                params[level.name] = self.more[level.name]
            elif level == main:
                params[level.name] = self.scales.reshape(grouping.grid(level.granularity, shape))
            else:
                params[level.name] = np.full(grouping.grid(level.granularity, shape), self.global_scale, np.float32)
        return params

    def dequantize(self, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """The values (tokens, heads, head_dim): float32 arithmetic, then rounded once to `dtype`."""
        return dequantize(self, dtype)


def quantize(
    x: ArrayLike,
    recipe: str | Recipe,
    *,
    scale: ArrayLike | None = None,
    params: Mapping[str, ArrayLike] | None = None,
) -> Quantized:
    """Quantize K or V by a recipe, bit for bit.

    x: (tokens, heads, head_dim), float32, float16 or bfloat16, any strides; widened to float32 exactly. recipe: a mode
    name (= its golden recipe), a recipe name or a `Recipe`. scale: the per-tensor scale (the decode multiplier) of a
    recipe that has one, rounded once to float32 and then finite and > 0; without it, it is computed from x. params:
    parameters that the recipe lets the caller give, by name, in their block shape (or a shape that broadcasts to it).

    Raises InputError for another dtype (float64 included) or shape, no elements, a head_dim that does not divide into
    the recipe's blocks, or a scale or parameter that the recipe does not take.
    """
    values = checked(x)
    how = find(recipe).for_input(values.dtype.name)
    if how.element is None:
        if scale is not None or params:
            raise InputError(f"{how.name} takes no scale")
        return Quantized(values.copy(), np.zeros(0, np.float32), np.float32(1), how)
    given = _given(how, values.shape, scale, params or {})
    if how.prepare:
        values = prepared(how.prepare, values.astype(np.float32)).astype(values.dtype)
    share = how.share
    if share is not None and not (share.within_row and _are_scalars(given)):
        return _quantize_groups(how, values, given)
    rows = _rows(values)
    outer, stored, more = _outer_scales(how, values, rows, given)
    return _quantize(how, values, rows, outer, stored, more)


def _given(
    how: Recipe, shape: tuple[int, ...], scale: ArrayLike | None, params: Mapping[str, ArrayLike]
) -> dict[str, NDArray[np.float32]]:
    """The parameters that the caller gives, by name, float32 in their block shape."""
    levels = {level.name: level for level in how.levels if level.may_be_given}
    found: dict[str, NDArray[np.float32]] = {}
    if scale is not None:
        name = next(iter(levels), "")
        found[name] = np.full((1, 1, 1), given_scale(scale, how), np.float32)
    for name, each in params.items():
        if name not in levels:
            known = ", ".join(levels) or "none"
            raise InputError(f"{how.name} takes no parameter {name!r}; it takes {known}")
        found[name] = _one_given(each, levels[name])
    for name, values in found.items():
        wanted = grouping.grid(levels[name].granularity, shape)
        if values.size == 1:
            values = values.reshape((1,) * len(wanted))
        if len(wanted) == len(values.shape) and all(n in (1, w) for n, w in zip(values.shape, wanted, strict=True)):
            found[name] = np.broadcast_to(values, wanted)
        else:
            raise InputError(f"{name} of {how.name} must have shape {wanted} here; got {values.shape}")
    return found


def _one_given(given: ArrayLike, level: Level) -> NDArray[np.float32]:
    array = native(given, level.name)
    if array.dtype.kind not in "fiu" and array.dtype != ml_dtypes.bfloat16:
        raise InputError(f"parameter {level.name} must be numbers; got {array.dtype}")
    with np.errstate(over="ignore"):
        values: NDArray[np.float32] = array.astype(np.float32)
    if not np.isfinite(values).all():
        raise InputError(f"parameter {level.name} must be finite in float32")
    return values


def _are_scalars(given: Mapping[str, NDArray[Any]]) -> bool:
    return all(each.size == 1 for each in given.values())


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
    raw, stored = level.format.empty((len(stats),))
    engine.scale_groups(static(engine.ScalePlan(names, level)), outer, stats, raw)
    return stored


def _outer_scales(
    how: Recipe, x: NDArray[Any], rows: NDArray[Any], given: Mapping[str, NDArray[np.float32]]
) -> tuple[NDArray[np.float32], NDArray[Any], dict[str, NDArray[Any]]]:
    """The values of the outer scales for every row, float32 (rows, outer levels), the last level as stored, and all."""
    tokens, heads, _ = x.shape
    outer = np.empty((tokens, heads, len(how.outer)), np.float32)
    stored: NDArray[Any] = np.zeros(0, np.float32)
    more: dict[str, NDArray[Any]] = {}
    for index, level in enumerate(how.outer):
        shape = grouping.grid(level.granularity, x.shape)
        if level.name in given:
            stored = np.array(given[level.name].reshape(-1), np.float32)
            outer[..., index] = given[level.name][..., 0]
            more[level.name] = stored.reshape(shape)
            continue
        shared = (level.granularity.shares_tokens, level.granularity.shares_heads)
        over = tuple(axis for axis, does in enumerate(shared) if does)
        stats = _row_statistics(level, rows, x.dtype.name).reshape(tokens, heads, -1).max(axis=over, keepdims=True)
        grid = stats.shape[:2]
        groups = grid[0] * grid[1]
        before = outer[: grid[0], : grid[1], :index].reshape(groups, index)
        names = tuple(each.name for each in how.outer[:index])
        stored = _scales_of(level, names, np.ascontiguousarray(before), stats.reshape(groups, -1))
        outer[..., index] = level.format.values(stored).reshape(grid)
        more[level.name] = stored.reshape(shape)
    return outer.reshape(len(rows), len(how.outer)), stored, more


def _quantize(
    how: Recipe,
    x: NDArray[Any],
    rows: NDArray[Any],
    outer: NDArray[np.float32],
    stored: NDArray[Any],
    more: dict[str, NDArray[Any]],
) -> Quantized:
    tokens, heads, dims = x.shape
    assert how.element is not None
    fmt = element(how.element)
    if how.share is None:
        plan = static(_plan(how, x.dtype.name, 0))
        codes = np.empty(rows.shape, np.uint8)
        threads.over(len(rows), rows.size, lambda a, b: engine.encode_rows(plan, rows[a:b], outer[a:b], codes[a:b]))
        return Quantized(typed(codes, fmt).reshape(x.shape), stored, np.float32(1), how, more)
    columns = _columns(how, dims)
    codes, kept, undefined = _run(how, x.dtype.name, rows, outer, columns)
    shape = (tokens, heads, columns)
    first, *others = (kept[level.name] for level in (*how.group, *how.after))
    scales = first.reshape(shape if how.share.dims else (tokens, heads))
    names = [level.name for level in (*how.group, *how.after)][1:]
    more |= {name: each.reshape(shape) for name, each in zip(names, others, strict=True)}
    shared = np.float32(outer[0, -1]) if how.outer else np.float32(1)
    gone = None if undefined is None else undefined.reshape(shape)
    return Quantized(typed(codes, fmt).reshape(x.shape), scales, shared, how, more, gone)


def _plan(how: Recipe, dtype: str, width: int, given: tuple[str, ...] = ()) -> engine.RowPlan:
    outer = (*(level.name for level in how.outer), *given)
    group = tuple(level for level in how.group if level.name not in given)
    return engine.RowPlan(dtype, outer, group, how.code, how.after, how.undefined, width)


def _run(
    how: Recipe,
    dtype: str,
    rows: NDArray[Any],
    outer: NDArray[np.float32],
    columns: int,
    given: tuple[str, ...] = (),
    *,
    width: int | None = None,
) -> tuple[NDArray[np.uint8], dict[str, NDArray[Any]], NDArray[np.bool_] | None]:
    """Codes, stored parameters by name and undefined groups (rows, columns) of rows of groups.

    outer: the values of the outer parameters, and then those of the group's that are given, for each row.
    """
    plan = static(_plan(how, dtype, (how.share.dims if how.share else 0) if width is None else width, given))
    codes = np.empty(rows.shape, np.uint8)
    levels = [level for level in (*how.group, *how.after) if level.name not in given]
    arrays = [level.format.empty((len(rows), columns)) for level in levels]
    raw = [each for each, _ in arrays]
    flags = np.zeros((len(rows), columns), np.uint8) if how.undefined else None
    if flags is not None:
        raw.append(flags)
    if raw:
        threads.over(
            len(rows),
            rows.size,
            lambda a, b: engine.quantize_rows(
                plan, rows[a:b], outer[a:b], codes[a:b], tuple(each[a:b] for each in raw)
            ),
        )
    else:
        threads.over(len(rows), rows.size, lambda a, b: engine.encode_rows(plan, rows[a:b], outer[a:b], codes[a:b]))
    stored = {level.name: each for level, (_, each) in zip(levels, arrays, strict=True)}
    return codes, stored, None if flags is None else flags.view(bool)


def _quantize_groups(how: Recipe, x: NDArray[Any], given: Mapping[str, NDArray[np.float32]]) -> Quantized:
    """Quantize where groups are no runs within a row: each group becomes a row of its own."""
    share = how.share
    assert share is not None
    assert how.element is not None
    bits = x.view(_DTYPES[x.dtype.name])
    params: dict[str, NDArray[Any]] = dict(given)
    outer_names: list[str] = []
    for level in how.outer:
        if level.name not in given:
            params[level.name] = _outer_level(how, level, bits, x.dtype.name, params, outer_names)
        outer_names.append(level.name)
    own = tuple(level.name for level in how.group if level.name in given)
    around = [
        grouping.take_outer(share, level.granularity, level.format.values(params[level.name]), x.shape)
        for level in (*how.outer, *(level for level in how.group if level.name in own))
    ]
    made = [
        _run(how, x.dtype.name, rows, _columns_of(around, index, len(rows)), 1, own, width=0)
        for index, rows in enumerate(grouping.gather(share, bits))
    ]
    codes = grouping.scatter(share, [each[0] for each in made], x.shape)
    for name in made[0][1]:
        params[name] = grouping.place(share, [each[1][name][:, 0] for each in made], x.shape)
    gone = None
    if how.undefined:
        flags = [each[2][:, 0] for each in made if each[2] is not None]
        gone = grouping.place(share, flags, x.shape)
    first = (*how.group, *how.after)[0].name
    return Quantized(
        typed(codes, element(how.element)),
        params[first],
        np.float32(params[outer_names[-1]].reshape(-1)[0]) if outer_names else np.float32(1),
        how,
        {level.name: params[level.name] for level in how.levels},
        gone,
    )


def _outer_level(
    how: Recipe, level: Level, bits: NDArray[Any], dtype: str, params: Mapping[str, NDArray[Any]], before: list[str]
) -> NDArray[Any]:
    """The parameters of an outer level as stored, in their block shape."""
    share, shape = level.granularity, bits.shape
    levels = [each for each in how.levels if each.name in before]
    around = [
        grouping.take_outer(share, each.granularity, each.format.values(params[each.name]), shape) for each in levels
    ]
    stored = []
    for index, rows in enumerate(grouping.gather(share, bits)):
        stats = _row_statistics(level, rows, dtype)
        stored.append(_scales_of(level, tuple(before), _columns_of(around, index, len(rows)), stats))
    return grouping.place(share, stored, shape)


def _columns_of(around: list[list[NDArray[np.float32]]], index: int, count: int) -> NDArray[np.float32]:
    out = np.empty((count, len(around)), np.float32)
    for column, each in enumerate(around):
        out[:, column] = each[index]
    return out


def _columns(how: Recipe, dims: int) -> int:
    assert how.share is not None
    shared = how.share.dims
    if shared and dims % shared:
        raise InputError(f"{how.name} needs a head_dim that is a multiple of {shared}; got {dims}")
    return how.share.columns(dims)


def dequantize(quantized: Quantized, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """The values that codes and parameters stand for, by the recipe's value program; see `Quantized.dequantize`."""
    how, codes, out_dtype = quantized.recipe, quantized.codes, float_dtype(dtype)
    if how.element is None:
        return _rounded(codes, out_dtype)
    fmt = element(how.element)
    patterns = np.ascontiguousarray(codes).view(np.uint8) & np.uint8(fmt.codes - 1)
    share = how.share
    if share is None or (share.within_row and all(level.granularity.of_rows for level in how.outer)):
        return _by_tokens(quantized, patterns, out_dtype)
    params, shape = quantized.params, codes.shape
    around = [
        grouping.take_outer(share, level.granularity, level.format.values(params[level.name]), shape)
        for level in (*how.outer, *how.group, *how.after)
    ]
    plan = static(engine.ValuePlan(tuple(level.name for level in (*how.outer, *how.group, *how.after)), (), how.value))
    table, made = fmt.values(), []
    for index, rows in enumerate(grouping.gather(share, patterns)):
        values, outer = np.empty(rows.shape, np.float32), _columns_of(around, index, len(rows))
        _dequantize_rows(plan, rows, table, outer, np.empty((len(rows), 1, 0), np.float32), values)
        made.append(values)
    return _rounded(restored(how.prepare, grouping.scatter(share, made, shape)), out_dtype)


def _by_tokens(quantized: Quantized, patterns: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values where groups lie within rows, or whole rows share all parameters; tile by tile, on all cores."""
    how, (tokens, heads, dims) = quantized.recipe, patterns.shape
    pieces = threads.tiles(tokens, heads * dims)
    if len(pieces) <= 1 or any(not level.granularity.shares_tokens for level in how.outer):
        return _rounded(restored(how.prepare, _values_of_rows(quantized, patterns)), dtype)
    out = np.empty(patterns.shape, dtype)
    own = {level.name for level in (*how.group, *how.after)}

    def some(start: int, stop: int) -> None:
        part = replace(
            quantized,
            scales=quantized.scales[start:stop] if own else quantized.scales,
            more={name: each[start:stop] if name in own else each for name, each in quantized.more.items()},
        )
        values = restored(how.prepare, _values_of_rows(part, patterns[start:stop]))
        out[start:stop] = _rounded(values, dtype)

    for _ in threads.in_order(some, pieces):
        pass
    return out


def _values_of_rows(quantized: Quantized, patterns: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The values (tokens, heads, head_dim) where groups lie within rows, or whole rows share all parameters."""
    how, (tokens, heads, dims) = quantized.recipe, patterns.shape
    rows = patterns.reshape(-1, dims)
    outer: NDArray[np.float32] = np.full((tokens, heads, len(how.outer)), quantized.global_scale, np.float32)
    inner = (*how.group, *how.after)
    columns = how.share.columns(dims) if how.share else 1
    scales = np.empty((len(rows), columns, len(inner)), np.float32)
    if inner:
        scales[..., 0] = inner[0].format.values(quantized.scales).reshape(len(rows), columns)
    for index, level in enumerate(inner[1:], 1):
        scales[..., index] = level.format.values(quantized.more[level.name]).reshape(len(rows), columns)
    for index, level in enumerate(how.outer):
        if level.name in quantized.more:
            outer[..., index] = level.format.values(quantized.more[level.name])[..., 0]
    if not inner and how.outer:
        shared = how.outer[-1].granularity
        grid = (1 if shared.shares_tokens else tokens, 1 if shared.shares_heads else heads)
        outer[..., -1] = how.outer[-1].format.values(quantized.scales).reshape(grid)
    names = tuple(level.name for level in how.outer), tuple(level.name for level in inner)
    values = np.empty(rows.shape, np.float32)
    plan = static(engine.ValuePlan(*names, how.value))
    _dequantize_rows(
        plan, rows, element(how.element or "").values(), outer.reshape(len(rows), len(how.outer)), scales, values
    )
    return values.reshape(patterns.shape)


def _dequantize_rows(plan: Any, rows: Any, table: Any, outer: Any, scales: Any, values: Any) -> None:
    threads.over(
        len(rows),
        rows.size,
        lambda a, b: engine.dequantize_rows(plan, rows[a:b], table, outer[a:b], scales[a:b], values[a:b]),
    )


def _rounded(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is Inf; NaN payloads may narrow
        return values.astype(dtype)
