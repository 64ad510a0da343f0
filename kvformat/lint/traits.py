"""What right pages of a recipe show, found by running the recipe itself on rows that sweep every mantissa."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.recipes import plain
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized

Array = NDArray[Any]


@dataclass(frozen=True)
class Traits:
    """What the rules need to know of a recipe. Magnitudes are those of codes, before the scale."""

    #: element format of the codes; mode none: ""
    kind: str
    #: format of the scales in the page, "" where there are none
    scale_kind: str = ""
    #: every scale is a power of two
    powers: bool = False
    #: the largest code under a scale that is on no floor is at least this
    least_top: float = 0.0
    #: scales up to here may be on a floor, where the largest code is anything
    floor: float = 0.0
    #: what the recipe makes of a +0
    zero_is_negative: bool = False
    #: and whether it makes NaN of zeros alone, as 0 / 0 is
    zeros_are_nan: bool = False
    #: the magnitude of every code under a scale of zeros alone, where it is a number: 0 * Inf may have been clamped
    zeros: float = 0.0
    #: scales of blocks of 16 beside one of the tensor, which some layouts swizzle
    swizzles: bool = False
    #: the value of the code of zeros: 8 where codes are unsigned and 8 is taken off
    zero: float = 0.0
    #: a code of 0 is not the value 0: there is a zero point, or a minimum, or the codes of zeros are others
    offset: bool = False
    #: a right scale may be negative
    signed: bool = False


#: subnormal scales are far from the quotient that they were rounded from
_ABOVE_SUBNORMALS = {
    "e4m3fn": 2.0**-6,
    "e8m0fnu": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-100,
    "float32": 2.0**-100,
}


@cache
def traits(recipe: Recipe) -> Traits:
    """The traits of a recipe."""
    if recipe.element is None:
        return Traits("")
    kind = recipe.element
    recipe = recipe.for_input("bfloat16")  # where parameters are stored in the dtype of x: that of most models
    inner = recipe.inner
    if inner is None:
        runs = _runs(recipe)
        zero = float(_values(runs[0])[0, 0, 1])  # beside one large element
        return Traits(kind, zero_is_negative=any(map(_negative_zero, runs)), zero=zero)
    stored = inner.store.split()[0]
    runs = _runs(recipe)
    tops = min(float(_tops(run).min()) for run in runs)
    if element(kind).kind == "integer":
        tops -= 1  # a scale some ulp off
    scales = np.concatenate([_scales(run).reshape(-1) for run in runs])
    return Traits(
        kind,
        stored,
        bool((np.frexp(scales)[0] == 0.5).all()),
        tops,
        max(_floor(recipe), _ABOVE_SUBNORMALS[stored]),
        any(map(_negative_zero, runs)),
        _nan_of_zeros(recipe),
        _of_zeros(recipe),
        swizzles=bool(recipe.outer) and stored == "e4m3fn",
        offset=_offset(recipe, runs),
        signed=bool((np.signbit(scales) & ~np.isnan(scales)).any()),
    )


def _variants(recipe: Recipe) -> tuple[Recipe, ...]:
    """The recipe without what is done to rows first, in each of its trials: what the NumPy reader takes."""
    bare = replace(recipe, prepare=())
    settled = [
        replace(each, levels=tuple(replace(level, trials=()) if level.trials else level for level in each.levels))
        for each in bare.tried()
    ]
    return tuple(settled)


def _runs(recipe: Recipe) -> list[Quantized]:
    dims = (recipe.inner.granularity.dims if recipe.inner else 0) or 32
    rows = _rows(dims)
    with np.errstate(all="ignore"):
        return [plain.quantize(rows, each) for each in _variants(recipe)]


def _rows(dims: int) -> NDArray[np.float32]:
    """Rows of one large element and zeros, and of one large element among smaller ones: (rows, 1, dims)."""
    mantissas = (1 + np.arange(128) / 128).astype(np.float32)
    near = np.concatenate([mantissas, np.nextafter(mantissas, np.float32(4)), np.nextafter(mantissas, np.float32(0))])
    amax = np.concatenate([near * np.float32(2.0**e) for e in (-1, 0, 1)])
    alone = np.zeros((len(amax), 1, dims), np.float32)
    rng = np.random.default_rng(0)
    among = (rng.uniform(-0.9, 0.9, (len(amax), 1, dims)) * amax[:, None, None]).astype(np.float32)
    alone[:, 0, 0] = among[:, 0, 0] = amax
    return np.concatenate([alone, among])


def _values(made: Quantized) -> Array:
    assert made.recipe.element is not None
    fmt = element(made.recipe.element)
    values: Array = fmt.values()[made.codes.view(np.uint8) & np.uint8(fmt.codes - 1)]
    return values


def _tops(made: Quantized) -> Array:
    tops: Array = np.abs(_values(made)).max(axis=2)
    return tops


def _offset(recipe: Recipe, runs: list[Quantized]) -> bool:
    return len(recipe.in_page) > 1 or any(bool(_values(run)[: len(run.codes) // 2, :, 1:].any()) for run in runs)


def _negative_zero(made: Quantized) -> bool:
    """Whether the zeros of the first half, beside one large element, are negative ones."""
    values = _values(made)[: len(made.codes) // 2, :, 1:]
    return bool((np.signbit(values) & (values == 0)).any())


def _nan_of_zeros(recipe: Recipe) -> bool:
    return any(bool(np.isnan(each).any()) for each in _codes_of_zeros(recipe))


def _of_zeros(recipe: Recipe) -> float:
    return max(float(np.nan_to_num(np.abs(each)).max()) for each in _codes_of_zeros(recipe))


def _codes_of_zeros(recipe: Recipe) -> list[Array]:
    rows = np.zeros((1, 1, (recipe.inner.granularity.dims if recipe.inner else 0) or 32), np.float32)
    with np.errstate(all="ignore"):
        return [_values(plain.quantize(rows, each)) for each in _variants(recipe)]


def _scales(made: Quantized) -> Array:
    assert made.recipe.inner is not None
    return made.recipe.inner.format.values(made.scales)


def _floor(recipe: Recipe) -> float:
    """Twice the scale that rows get which differ in nothing but that they are tiny; 0 where they differ."""
    dims = (recipe.inner.granularity.dims if recipe.inner else 0) or 32
    rows = np.zeros((2, 1, dims), np.float32)
    rows[:, 0, 0] = 1e-30, 1e-25
    floors = [0.0]
    if recipe.outer:
        return 0.0
    with np.errstate(all="ignore"):
        for each in _variants(recipe):
            first, second = _scales(plain.quantize(rows, each)).reshape(2, -1)[:, 0].tolist()
            floors.append(2 * first if first == second else 0.0)
    return max(floors)
