"""`convert`: a cache in another layout, and its codes in another element format, each lossless or refused.

fn and fnuz formats differ in their bias: a byte of e4m3fnuz stands for half of what it stands for in e4m3fn, so the
byte stays and the scale doubles. -0, which is fnuz's NaN, and the numbers that only one of the formats has are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import ElementFormat, element
from kvformat.errors import InputError
from kvformat.layouts import Layout, Region, Segment, rearrange
from kvformat.layouts.region import Bytes, Side
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Level, Recipe

#: bytes of pages whose codes are translated at once
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Cache:
    """The pages of a layer, how they lie, whose codes they hold, and the per-tensor scales kept beside them."""

    pages: Bytes
    layout: Layout
    recipe: Recipe
    k_scale: np.float32 | None = None
    v_scale: np.float32 | None = None

    def scale(self, side: Side) -> np.float32 | None:
        """The per-tensor scale of a side, as the recipe takes it."""
        return self.k_scale if side == "k" else self.v_scale


@dataclass(frozen=True)
class Translation:
    """What a code of one format becomes in another, whose values are `factor` times smaller."""

    source: ElementFormat
    target: ElementFormat
    #: the source's value of a byte over the target's: what the scale is multiplied by
    factor: float
    #: by source code, the target's; -1 where there is none
    table: NDArray[np.int16]

    def why(self, code: int) -> str:
        """What would be lost of a code that has no counterpart."""
        name, value = self.target.name, self.source.value(code)
        if code in self.source.nan_codes:
            kept = self.source.nan_input_code
            return f"a NaN other than 0x{kept:02X}: {name} would not give it back"
        if value == 0:
            return f"-0, which {name} does not have; its sign can be dropped"
        return f"{value:g}, for which {name} has no code at {self.factor:g} times the scale"


def convert(
    held: Cache,
    layout: Layout | None = None,
    recipe: str | Recipe | None = None,
    *,
    drop_padding: bool = False,
    drop_zero_signs: bool = False,
) -> Cache:
    """The same cache in another layout, with the codes of another recipe, or both.

    layout: see `kvformat.layouts.rearrange`. recipe: one whose codes are of another element format; scales are adjusted
    so that every value stays what it is. drop_zero_signs: a -0 that the format does not have becomes 0. Raises
    InputError where something would be lost, naming the first byte.
    """
    pages, how = held.pages, held.recipe
    scales = {"k": held.k_scale, "v": held.v_scale}
    if recipe is not None and find_recipe(recipe) != how:
        target = find_recipe(recipe)
        translated = translation(how, target, drop_zero_signs=drop_zero_signs)
        _check_levels(how, target)
        pages = _translated(held, translated)
        if how.outer:
            scales = {side: _scaled(scale, how.outer[-1], translated.factor, side) for side, scale in scales.items()}
        how = target
    if layout is not None and layout != held.layout:
        pages = rearrange(pages, held.layout, layout, drop_padding=drop_padding)
    return Cache(pages, layout or held.layout, how, scales["k"], scales["v"])


def translation(source: Recipe, target: Recipe, *, drop_zero_signs: bool = False) -> Translation:
    """From the codes of one recipe to those of another. Raises InputError for recipes between which there is none."""
    if source.element is None or target.element is None or source.element == target.element:
        same = f"codes of {source.name} and {target.name} are of the same format"
        raise InputError(f"{same}: only who made them differs, and conversion does not change that")
    here, there = element(source.element), element(target.element)
    if here.kind != "float" or there.kind != "float" or here.bits != there.bits:
        raise InputError(f"{here.name} codes have no counterparts in {there.name}")
    factor = 2.0 ** (there.bias - here.bias)
    by_value = {(there.value(code), bool(code & there.sign_bit)): code for code in range(there.codes)}
    table = np.full(here.codes, -1, np.int16)
    for code in range(here.codes):
        if code in here.nan_codes:
            table[code] = there.nan_input_code if code == here.nan_input_code else -1
        else:
            table[code] = by_value.get((here.value(code) / factor, bool(code & here.sign_bit)), -1)
    if drop_zero_signs and here.has_negative_zero and not there.has_negative_zero:
        table[here.sign_bit] = 0
    return Translation(here, there, factor, table)


def _check_levels(source: Recipe, target: Recipe) -> None:
    """Their scales must be of the same kinds: what shares one, how it is stored, and what it multiplies."""
    kinds = [
        [(level.granularity, level.store, level.multiplier) for level in recipe.levels] for recipe in (source, target)
    ]
    if source.mode != target.mode or kinds[0] != kinds[1]:
        raise InputError(f"{source.name} and {target.name} do not store the same kinds of scales")
    if not source.levels:
        raise InputError(f"{source.name} has no scale that could make up for other values of the codes")


def _translated(held: Cache, translated: Translation) -> Bytes:
    """The pages with every code translated, and where scales lie in them, those too."""
    pages = held.pages.copy()
    slots = np.arange(len(pages) * held.layout.block_size)
    step = max(1, _CHUNK // held.layout.page_bytes) * held.layout.block_size
    for start in range(0, len(slots), step):
        for side in held.layout.sides:
            for segment in held.layout.segments(side):
                if not segment.recipe:
                    _translate(held, pages, slots[start : start + step], segment, translated)
    return pages


def _translate(held: Cache, pages: Bytes, slots: NDArray[np.int64], segment: Segment, translated: Translation) -> None:
    block, slot = np.divmod(slots, held.layout.block_size)
    for region in segment.codes:
        rows = region.read(pages, block, slot)
        made = translated.table[rows]
        if (made < 0).any():
            token, head, column = np.unravel_index(int(np.argmax(made < 0)), made.shape)
            place = _place(held.layout, region, int(slots[token]), int(head), int(column))
            code = int(rows[token, head, column])
            raise InputError(f"{place} is 0x{code:02X}, {translated.why(code)}")
        region.write(pages, block, slot, made.astype(np.uint8))
    if held.recipe.outer or held.recipe.inner is None:
        return
    for region in segment.scales:
        rows = region.read(pages, block, slot)
        scales = rows.view("<f4")
        doubled = _times(scales, held.recipe.inner, translated.factor)
        lost = _times(doubled, held.recipe.inner, 1 / translated.factor).view("<u4") != scales.view("<u4")
        if lost.any():
            token, head, column = np.unravel_index(int(np.argmax(lost)), lost.shape)
            place = _place(held.layout, region, int(slots[token]), int(head), int(column))
            raise InputError(
                f"{place} is {scales[token, head, column]!s}, which float32 cannot hold {translated.factor:g} times"
            )
        region.write(pages, block, slot, doubled.astype("<f4").view(np.uint8))


def _scaled(scale: np.float32 | None, level: Level, factor: float, side: str) -> np.float32 | None:
    if scale is None:
        return None
    made = np.float32(_times(np.array([scale]), level, factor)[0])
    if not np.isfinite(made) or _times(np.array([made]), level, 1 / factor)[0] != scale:
        raise InputError(f"{side}_scale is {scale!s}, which float32 cannot hold {factor:g} times")
    return made


def _times(scales: NDArray[np.float32], level: Level, factor: float) -> NDArray[np.float32]:
    """Scales that make up for codes whose values are `factor` times smaller, as the level's library keeps them."""
    if level.multiplier == "amax":
        return scales  # the tensor's largest magnitude is what it was
    with np.errstate(over="ignore", invalid="ignore"):
        return scales * np.float32(factor if level.multiplier == "decode" else 1 / factor)


def _place(layout: Layout, region: Region, slot: int, head: int, column: int) -> str:
    block, position = divmod(slot, layout.block_size)
    byte = region.address(position, head, column) // 8
    dim = region.dims(column).start
    return f"{region.name} of slot {slot}, head {head}, dim {dim} (byte {byte} of page {block})"
