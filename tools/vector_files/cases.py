"""The inputs of the recipe vectors: small tensors (tokens, heads, head_dim), one edge of quantization in each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.data import sample
from kvformat.elements import exact
from kvformat.elements.formats import element
from kvformat.recipes.program import Recipe

Array = NDArray[Any]

DTYPES = {"binary32": np.float32, "bfloat16": ml_dtypes.bfloat16, "binary16": np.float16}

NOTES = {
    "Ordinary": "normally distributed numbers",
    "Real": "a row of K from layer 20 of SmolLM2-135M: token 0 is an attention sink",
    "Tie": "every midpoint of the element format, under a scale that is a power of two in most recipes",
    "Outlier": "one element is 1000 times larger than the others",
    "Zero": "all elements are zeros, of both signs",
    "Speck": "one tiny negative element among zeros: where the scale underflows its code is a zero that keeps its sign",
    "Subnormal": "all elements are float32 subnormals: scales underflow or are clamped",
    "Huge": "elements near the largest float32: intermediate results may overflow",
    "Infinity": "an Inf among ordinary elements",
    "NaN": "a NaN among ordinary elements",
    "NotFinite": "no element is finite",
    "Shared": "several tokens and heads of different size: shows what shares a scale",
    "GivenScale": "the per-tensor scale is given in `scale`, not computed",
    "Approximate": "the recipe has an approximate instruction, and its bound allows other results than this one: "
    "`result` is `acceptable`, the value given is that of correctly rounded instructions",
}


@dataclass(frozen=True)
class Case:
    """One tensor."""

    id: str
    flag: str
    x: Array
    scale: np.float32 | None = None


def width(recipe: Recipe) -> int:
    """The head_dim of a recipe's cases: two of its groups, at least 32."""
    group = recipe.inner.granularity.dims if recipe.inner else 0
    return max(32, group) if group > 16 else 32


def cases(recipe: Recipe, source: str) -> Iterator[Case]:
    """The tensors in one input format: every edge in binary32, the main ones in the 16-bit formats."""
    for case in _all(recipe):
        if source == "binary32" or case.flag in ("Ordinary", "Real", "Tie", "Shared", "NaN"):
            with np.errstate(over="ignore", invalid="ignore"):
                yield Case(case.id, case.flag, case.x.astype(DTYPES[source]), case.scale)


def _all(recipe: Recipe) -> Iterator[Case]:
    dims = width(recipe)
    rng = np.random.default_rng(7)
    ordinary = rng.standard_normal(dims).astype(np.float32)
    yield _row("ordinary", "Ordinary", ordinary)
    yield _row("real", "Real", np.resize(sample()[1].key[0, 0].astype(np.float32), dims))
    for number, row in enumerate(_ties(recipe, dims), 1):
        yield _row(f"ties-{number}", "Tie", row)
    yield _row("outlier", "Outlier", _with(ordinary, {5: 1000 * float(np.abs(ordinary).max())}))
    yield _row("zeros", "Zero", np.where(np.arange(dims) % 3, 0.0, -0.0))
    yield _row("speck", "Speck", _with(np.zeros(dims, np.float32), {3: -1e-30}))
    yield _row("subnormal", "Subnormal", np.ldexp(rng.integers(-3000, 3000, dims).astype(np.float64), -149))
    yield _row("huge", "Huge", _with(np.ldexp(ordinary.astype(np.float64), 122), {7: 3e38}))
    yield _row("infinity", "Infinity", _with(ordinary, {2: math.inf, dims - 1: -math.inf}))
    yield _row("nan", "NaN", _with(ordinary, {4: math.nan}))
    yield _row("not-finite", "NotFinite", np.resize([math.nan, math.inf, -math.inf], dims))
    sizes = np.array([[1.0, 40.0], [0.01, 2.0**-20]], np.float32)[..., None]
    shared = rng.standard_normal((2, 2, dims)).astype(np.float32) * sizes
    yield Case("shared", "Shared", shared)
    if any(level.may_be_given for level in recipe.levels):
        for name, scale in (("decimal", 0.037), ("power-of-two", 0.25), ("large", 1e6), ("subnormal", 2.0**-140)):
            yield Case(f"given-{name}", "GivenScale", ordinary.reshape(1, 1, -1), np.float32(scale))


def _row(name: str, flag: str, row: Any) -> Case:
    return Case(name, flag, np.asarray(row).astype(np.float32).reshape(1, 1, -1))


def _with(row: Array, places: dict[int, float]) -> Array:
    changed = row.copy()
    for place, value in places.items():
        changed[place] = value
    return changed


def _ties(recipe: Recipe, dims: int) -> Iterator[Array]:
    """Rows of midpoints and the largest value, so that scale = amax / largest is exactly 2^-3."""
    assert recipe.element is not None
    fmt = element(recipe.element)
    steps = [float(step) for step in exact.magnitudes(fmt)[:-1]]
    middles = np.array([(a + b) / 2 for a, b in pairwise(steps)])
    group = recipe.inner.granularity.dims if recipe.inner else 0
    group = group or dims
    rows = -(-len(middles) // (dims - dims // group))
    for picked in np.array_split(middles, min(rows, 3)):
        row = np.resize(picked, dims) * np.where(np.arange(dims) % 2, -1, 1)
        row[::group] = fmt.max
        yield row / 8
