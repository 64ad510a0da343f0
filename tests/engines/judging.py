"""What an engine left, beside what the recipe of the catalogue makes of the same input: compared bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes  # noqa: F401  (bfloat16 by its name)
import numpy as np
from numpy.typing import NDArray

import kvformat as kvf
from kvformat.cache import load
from kvformat.recipes.catalogue import recipe as find

#: NaN codes of the formats that have several: engines on a CPU keep the NaN's sign or not, by their vector width
_NAN = {"e4m3fn": (0x7F, 0xFF), "e5m2": (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF)}


@dataclass(frozen=True)
class Codes:
    """Codes and scales of one tensor, as an engine left them.

    Attributes
    ----------
    recipe : the name of the catalogue that is judged
    how : "PTX, sm_90": what executed it
    function : the engine's function or kernel
    x : (tokens, heads, head_dim), what it was given
    codes : one code per element, unpacked, x's shape
    scales : as stored, in the shape that `kvformat.quantize` gives; None where there are none
    scale : the given per-tensor scale
    nan_as_class : any NaN code counts as the NaN code (engines run on a CPU)
    unknown : elements and scales that the engine leaves open are not compared

    """

    recipe: str
    how: str
    function: str
    x: NDArray[Any]
    codes: NDArray[Any]
    scales: NDArray[Any] | None = None
    scale: np.float32 | None = None
    inputs: str = "hard rows"
    nan_as_class: bool = False
    layout: str = ""


@dataclass(frozen=True)
class Pages:
    """Whole pages as an engine's writer left them, K and V; every byte is compared."""

    recipe: str
    how: str
    function: str
    layout: kvf.Layout
    key: NDArray[Any]
    value: NDArray[Any] | None
    slots: NDArray[np.int64]
    pages: NDArray[np.uint8]
    before: NDArray[np.uint8]
    scales: tuple[np.float32, np.float32] | None = None
    inputs: str = "hard rows"


@dataclass
class Outcome:
    """One comparison: how many bytes or codes, and how many of them differ."""

    recipe: str
    how: str
    function: str
    inputs: str
    dtype: str
    layout: str
    compared: int
    differ: int
    first: str = ""
    vectors: list[Codes] = field(default_factory=list)


def judge(answer: Codes | Pages) -> Outcome:
    """Compare with the recipe that the answer names."""
    return _judge_codes(answer) if isinstance(answer, Codes) else _judge_pages(answer)


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The patterns of an array, float32 NaN made one: which NaN it is no standard says."""
    if array.dtype == np.float32:
        return np.where(np.isnan(array), np.uint32(0x7FC00000), array.view(np.uint32))
    return array.view(f"u{array.dtype.itemsize}")


def differing(found: NDArray[Any], expected: NDArray[Any], element: str | None, *, nan_as_class: bool) -> NDArray[Any]:
    """Where codes differ."""
    wrong = bits(found) != bits(expected)
    if nan_as_class and element in _NAN:
        wrong &= ~(np.isin(found, _NAN[element]) & np.isin(expected, _NAN[element]))
    return wrong


def _judge_codes(answer: Codes) -> Outcome:
    recipe = find(answer.recipe)
    expected = kvf.quantize(answer.x, recipe, scale=answer.scale)
    codes = answer.codes.view(expected.codes.dtype).reshape(expected.codes.shape)
    wrong = differing(codes, expected.codes, recipe.element, nan_as_class=answer.nan_as_class)
    differ, compared, first = int(np.count_nonzero(wrong)), codes.size, ""
    if answer.scales is not None:
        scales = answer.scales.view(expected.scales.dtype).reshape(expected.scales.shape)
        unlike = bits(scales) != bits(expected.scales)
        if unlike.any():
            at = tuple(np.argwhere(unlike)[0])
            group = answer.x[at[:2]] if len(at) > 1 else answer.x
            first = f"scale {at}: {scales[at]!r}, the recipe has {expected.scales[at]!r}; {_extremes(group)}"
        differ, compared = differ + int(np.count_nonzero(unlike)), compared + scales.size
    if wrong.any() and not first:
        at = tuple(np.argwhere(wrong)[0])
        first = f"code {at}: {int(codes[at]):#04x}, the recipe has {int(expected.codes[at]):#04x}; x {answer.x[at]!r}"
    return Outcome(
        answer.recipe, answer.how, answer.function, answer.inputs, answer.x.dtype.name, answer.layout,
        compared, differ, first, [answer],
    )  # fmt: skip


def _extremes(group: NDArray[Any]) -> str:
    return f"x of {len(group)}: {', '.join(map(str, group.astype(np.float32)[:6]))} ..."


def _judge_pages(answer: Pages) -> Outcome:
    k_scale, v_scale = answer.scales or (None, None)
    layout = answer.layout
    cache = kvf.PagedCache(layout, len(answer.before), k_scale, v_scale)
    cache.pages[:] = answer.before
    cache.write(answer.key, answer.value, answer.slots, answer.recipe)
    wrong = cache.pages != answer.pages
    first = ""
    if wrong.any():
        page, byte = map(int, np.argwhere(wrong)[0])
        place = layout.explain(byte=byte)
        first = f"page {page} byte {byte} ({place.side} {place.part}, slot {place.slot}, head {place.head}): "
        first += f"{answer.pages[page, byte]:#04x}, the recipe has {cache.pages[page, byte]:#04x}"
    return Outcome(
        answer.recipe, answer.how, answer.function, answer.inputs, answer.key.dtype.name,
        f"{layout.name} {layout.mode} {layout.order}", wrong.size, int(np.count_nonzero(wrong)), first,
        _vectors_of(answer),
    )  # fmt: skip


def _vectors_of(answer: Pages) -> list[Codes]:
    """What the pages hold of K, unpacked: for the committed vectors."""
    recipe, layout = find(answer.recipe), answer.layout
    kept = answer.slots >= 0
    made = []
    for side, x, scale in zip(("k", "v"), (answer.key, answer.value), answer.scales or (None, None), strict=True):
        if x is None or side not in layout.sides:
            continue
        segment = next(each for each in layout.segments(side) if not each.recipe)
        found = load(layout, answer.pages, answer.slots[kept], side, recipe, scale, segment)
        made.append(
            Codes(
                answer.recipe, answer.how, answer.function, x[kept][..., segment.dims.start : segment.dims.stop],
                found.codes, found.scales if recipe.inner else None, scale, answer.inputs,
            )
        )  # fmt: skip
    return made
