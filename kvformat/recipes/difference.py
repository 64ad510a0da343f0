"""Two recipes side by side: the operations that differ, and the smallest input on which their bytes do.

Random data does not show it: x / s and x * (1 / s) agree on 504,000 random values and differ on 294 of 6,174 that lie
on a border between two codes. So the search solves for such inputs: it takes scales that are no powers of two, asks a
recipe which numbers its codes stand for, and tries the midpoints between neighbours and the numbers right beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.recipes.normal import normal
from kvformat.recipes.plain import quantize, values
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized

#: groups in one batch of the search, and how many batches a search makes before it gives up
_GROUPS = 256
_BATCHES = 32
_DTYPES = (ml_dtypes.bfloat16, np.float32)


@dataclass(frozen=True)
class Witness:
    """An input on which two recipes differ: x (1, 1, head_dim), as small as could be, and what each makes of it."""

    x: NDArray[Any]
    scale: float | None
    left: Quantized
    right: Quantized


@dataclass(frozen=True)
class Difference:
    """What tells two recipes apart."""

    left: Recipe
    right: Recipe
    #: lines of a unified diff of their operations, by part
    operations: tuple[tuple[str, tuple[str, ...]], ...]
    witness: Witness | None
    #: how many inputs were tried
    tried: int

    @property
    def equal(self) -> bool:
        """Both come down to the same operations."""
        return normal(self.left) == normal(self.right)


def difference(left: Recipe, right: Recipe) -> Difference:
    """The operations in which two recipes of one mode differ, and an input on which their bytes do, if one is found.

    Raises InputError for recipes that do not store the same kinds of codes and scales.
    """
    if not comparable(left, right):
        raise InputError(f"{left.name} and {right.name} do not store the same kinds of codes and scales")
    operations = tuple((part, lines) for part, lines in _operations(left, right) if lines)
    if normal(left) == normal(right):
        return Difference(left, right, operations, None, 0)
    witness, tried = search(left, right)
    return Difference(left, right, operations, witness, tried)


def comparable(left: Recipe, right: Recipe) -> bool:
    """Whether the bytes of two recipes can be compared: codes and page scales of the same kinds, in the same mode."""
    return left.mode == right.mode and _stored(left) == _stored(right)


def _stored(recipe: Recipe) -> tuple[Any, ...]:
    fmt = None if recipe.element is None else element(recipe.element)
    codes = None if fmt is None else (fmt.bits, fmt.signed_integer)
    kept = [(part, level.store.split()[0], level.granularity) for part, level in recipe.in_page.items()]
    return codes, tuple(kept)


def _operations(left: Recipe, right: Recipe) -> Iterator[tuple[str, tuple[str, ...]]]:
    sides = (normal(left), normal(right))
    for part in dict.fromkeys((*sides[0], *sides[1])):
        yield part, tuple(_changed(sides[0].get(part, ()), sides[1].get(part, ())))


def _changed(left: Sequence[str], right: Sequence[str]) -> Iterator[str]:
    for tag, a, b, c, d in SequenceMatcher(a=left, b=right, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (f"- {line}" for line in left[a:b])
            yield from (f"+ {line}" for line in right[c:d])


# --- the search ----------------------------------------------------------------------------------------------------


def search(left: Recipe, right: Recipe, seed: int = 0) -> tuple[Witness | None, int]:
    """An input on which the bytes differ, made small, or None; and how many inputs were tried."""
    generator = np.random.default_rng(seed)
    tried = 0
    for x, scale in (*_special(left), *_batches(generator, left, right)):
        tried += x.size
        for row in _differing_rows(left, right, x, scale):
            return _shrunk(left, right, x[row : row + 1], scale), tried
    return None, tried


def _width(recipe: Recipe) -> int:
    return 128 if recipe.inner is None else recipe.inner.granularity.dims or 16


def _given(recipe: Recipe) -> bool:
    return any(level.may_be_given for level in recipe.levels)


def _special(recipe: Recipe) -> Iterator[tuple[NDArray[Any], float | None]]:
    """Zeros of both signs, NaN, Inf, subnormals and ties at scale 1, one kind a row."""
    width = _width(recipe)
    rows = np.zeros((12, 1, width), np.float32)
    ties = [0.25, -0.25, 0.75, -0.75, 1.25, 1.75, 2.5, -2.5, 3.5, 5.0, 6.0, -0.0, 0.5, 1.5, 126.5, 127.0]
    for row, first in enumerate(
        ([0.0], [-0.0, 1.0], [np.nan, 1.0], [np.inf, 1.0], [-np.inf, -1.0], [1e-40, -1e-40], [1e-6, -1e-6], [3e38, 1.0])
    ):
        rows[row, 0, : len(first)] = first
    rows[8, 0, : len(ties)] = ties
    rows[9, 0, : len(ties)] = np.negative(ties) * np.float32(448 / 127)
    rows[10, 0, :4] = [0.005859375, 0.004, -0.0029296875, 0.0009765625]
    rows[11, 0, :] = -0.0
    for index in range(len(rows)):
        for scale in (1.0, 0.3) if _given(recipe) else (None,):
            yield rows[index : index + 1], scale


def _batches(generator: Any, left: Recipe, right: Recipe) -> Iterator[tuple[NDArray[Any], float | None]]:
    """Groups whose elements lie on and right beside the borders between the codes of one of the two recipes."""
    width = _width(left)
    for batch in range(_BATCHES):
        dtype = np.dtype(_DTYPES[batch % 2])
        scale = float(np.float32(generator.uniform(1, 2) * 2.0 ** generator.integers(-12, 4))) if _given(left) else None
        reach = 448 * (1 if scale is None else scale)
        tops = generator.uniform(0.001, 1, _GROUPS) * reach * 2.0 ** generator.integers(-8, 3, _GROUPS)
        x = np.zeros((_GROUPS, 1, width), np.float32)
        x[:, 0, 0] = tops.astype(dtype)
        x[:, 0, 1:] = borders(generator, (left, right)[batch // 2 % 2], x.astype(dtype), scale, width - 1)
        yield x.astype(dtype), scale


def borders(generator: Any, recipe: Recipe, x: NDArray[Any], scale: float | None, count: int) -> NDArray[np.float32]:
    """`count` numbers for each row of x, on and right beside the borders between two codes under its first scale."""
    quantized = quantize(x, recipe, scale=scale)
    assert recipe.element is not None
    fmt = element(recipe.element)
    patterns = np.argsort(fmt.values(), kind="stable").astype(np.uint8)
    finite = patterns[np.isfinite(fmt.values()[patterns])]
    place = generator.integers(0, len(finite) - 1, (len(x), count))
    ends = [values(quantized, finite[place + step], x.shape[2]) for step in (0, 1)]
    with np.errstate(all="ignore"):
        middle = ((ends[0].astype(np.float64) + ends[1]) / 2).astype(x.dtype).astype(np.float32)
        unit = np.spacing(np.abs(middle)) * (65536 if x.dtype != np.float32 else 1)
        middle = middle + unit * generator.integers(-1, 2, middle.shape)
    top = np.abs(x[:, 0, :1].astype(np.float32))
    return np.where(np.abs(middle) < top, middle, 0).astype(np.float32)


def _differing_rows(left: Recipe, right: Recipe, x: NDArray[Any], scale: float | None) -> NDArray[np.int64]:
    with np.errstate(all="ignore"):
        a, b = (quantize(x, recipe, scale=scale) for recipe in (left, right))
    return np.flatnonzero(_differ(a, b))


def _differ(a: Quantized, b: Quantized) -> Any:
    """Which rows differ in a code, a page scale or the global scale; NaN compare as a class."""
    wrong = _not_same(a.codes, b.codes, a.recipe.element, b.recipe.element)
    rows: Any = wrong.reshape(len(wrong), -1).any(axis=1)
    if a.recipe.inner is not None:
        wrong = a.recipe.inner.format.differs(a.scales, b.scales)
        for name, more in a.more.items():
            level = next(each for each in a.recipe.levels if each.name == name)
            if level.granularity.within_row and more.shape == b.more[name].shape:
                wrong = wrong.reshape(more.shape) | level.format.differs(more, b.more[name])
        rows = rows | wrong.reshape(len(rows), -1).any(axis=1)
    return rows


def _not_same(a: Any, b: Any, left: str | None, right: str | None) -> Any:
    if left is None or right is None or a.dtype == np.float32:
        return (a.view(np.uint32) != b.view(np.uint32)) & ~(np.isnan(a) & np.isnan(b))
    nan = [np.isin(codes, element(name).nan_codes) for codes, name in ((a, left), (b, right))]
    return (a != b) & ~(nan[0] & nan[1])


def _shrunk(left: Recipe, right: Recipe, x: NDArray[Any], scale: float | None) -> Witness:
    """The row with every element that is not needed for the difference set to zero, and rounder where it can be."""
    for place in reversed(range(x.shape[2])):
        for simpler in (np.zeros((), x.dtype), np.abs(x[0, 0, place])):
            trial = x.copy()
            trial[0, 0, place] = simpler
            if trial.tobytes() != x.tobytes() and len(_differing_rows(left, right, trial, scale)):
                x = trial
                break
    return Witness(x, scale, quantize(x, left, scale=scale), quantize(x, right, scale=scale))
