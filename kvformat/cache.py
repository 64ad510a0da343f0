"""The paged cache: the one place where a recipe and a layout meet."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvformat.elements.codec import float_dtype, native
from kvformat.elements.formats import element
from kvformat.elements.packing import pack_nibbles, unpack_nibbles
from kvformat.errors import InputError
from kvformat.layouts import Layout, Region
from kvformat.layouts.page import as_integer
from kvformat.modes import mode as find_mode
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized, checked, given_scale, quantize
from kvformat.slots import check_slots

Side = Literal["k", "v"]


class PagedCache:
    """The pages of one layer, written and read as a kernel would, bit for bit.

    layout: from `kvformat.layout`. pages: uint8 (num_blocks, page_bytes), zeros at first. k_scale, v_scale: the
    per-tensor scales of modes that have them (fp8_per_tensor; nvfp4's global scale), float32; one per cache and side,
    given here or frozen by the first write.
    """

    def __init__(
        self, layout: Layout, num_blocks: int, k_scale: ArrayLike | None = None, v_scale: ArrayLike | None = None
    ) -> None:
        blocks = as_integer(num_blocks)
        if blocks is None or blocks < 1:
            raise InputError(f"num_blocks must be an integer >= 1; got {num_blocks!r}")
        self.layout = layout
        self.recipe: Recipe = _recipe_for(layout, layout.mode)
        self.k_scale = None if k_scale is None else given_scale(k_scale, self.recipe)
        self.v_scale = None if v_scale is None else given_scale(v_scale, self.recipe)
        self._written = False
        self.pages = np.zeros((blocks, layout.page_bytes), np.uint8)

    @property
    def num_slots(self) -> int:
        """Slots in all blocks."""
        return len(self.pages) * self.layout.block_size

    def write(
        self,
        key: ArrayLike,
        value: ArrayLike,
        slot_mapping: ArrayLike,
        recipe: str | Recipe | None = None,
        k_scale: ArrayLike | None = None,
        v_scale: ArrayLike | None = None,
    ) -> None:
        """Quantize tokens and store them in their slots; no other byte changes.

        key, value: (tokens, num_kv_heads, head_size / head_size_v), float32, float16 or bfloat16. slot_mapping:
        integers (tokens,); a negative slot writes nothing. recipe: the mode's golden recipe if None. k_scale, v_scale:
        as in the constructor; without one, the first write computes it over all its tokens, padding included.

        Raises InputError, before anything is written, for shapes and dtypes that do not fit, a slot past the end or
        taken twice, a recipe of another mode, one whose codes are read in another way than those that the cache has, or
        a scale other than the one the cache has.
        """
        how = _recipe_for(self.layout, self.layout.mode if recipe is None else recipe)
        if self._written and how.value != self.recipe.value:
            held = f"this cache holds codes of {self.recipe.name}"
            raise InputError(f"{held}; those of {how.name} are read in another way")
        slots = check_slots(slot_mapping, self.num_slots)
        sides: dict[Side, NDArray[Any]] = {"k": checked(key, "key"), "v": checked(value, "value")}
        for side, array in sides.items():
            _check_shape(self.layout, side, array, len(slots))
        scales = {"k": self._scale("k", k_scale, how), "v": self._scale("v", v_scale, how)}
        made = {side: quantize_for(self.layout, array, how, scales[side]) for side, array in sides.items()}
        for side, quantized in made.items():
            store(self.layout, self.pages, slots, side, quantized)
        self.recipe, self._written = how, True
        self.k_scale, self.v_scale = (_tensor_scale(made[side]) for side in ("k", "v"))

    def gather(
        self, block_table: ArrayLike, seq_len: int, dtype: DTypeLike = np.float32
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """The first seq_len tokens of a sequence: key and value (seq_len, num_kv_heads, head size), dequantized.

        block_table: the sequence's blocks in order, integers (blocks,). dtype: float32, float16, bfloat16 or float64,
        rounded to once. Raises InputError for a block outside the cache, a sequence longer than its blocks, or a
        per-tensor scale that no write has set yet.
        """
        slots = self._slots_of(block_table, seq_len)
        out = float_dtype(dtype)
        return self._gather_side("k", slots, out), self._gather_side("v", slots, out)

    def _slots_of(self, block_table: ArrayLike, seq_len: int) -> NDArray[np.int64]:
        blocks = native(block_table)
        if blocks.ndim != 1 or (blocks.size and blocks.dtype.kind not in "iu"):
            raise InputError(f"block_table must be integers of shape (blocks,); got {blocks.dtype} {blocks.shape}")
        outside = (blocks < 0) | (blocks >= len(self.pages))
        if outside.any():
            raise InputError(f"block_table names block {blocks[outside][0]}; blocks are 0..{len(self.pages) - 1}")
        capacity = blocks.size * self.layout.block_size
        length = as_integer(seq_len)
        if length is None or not 0 <= length <= capacity:
            raise InputError(
                f"seq_len must be an integer in 0..{capacity}, what the block table holds; got {seq_len!r}"
            )
        tokens = np.arange(length)
        slots: NDArray[np.int64] = blocks.astype(np.int64)[tokens // self.layout.block_size] * self.layout.block_size
        return slots + tokens % self.layout.block_size

    def _gather_side(self, side: Side, slots: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
        scale = self.k_scale if side == "k" else self.v_scale
        if scale is None and find_mode(self.layout.mode).tensor_scale:
            raise InputError(f"mode {self.layout.mode} needs a {side}_scale to be read: give one, or write first")
        return load(self.layout, self.pages, slots, side, self.recipe, scale).dequantize(dtype)

    def _scale(self, side: Side, given: ArrayLike | None, how: Recipe) -> np.float32 | None:
        kept = self.k_scale if side == "k" else self.v_scale
        if given is None:
            return kept
        scale = given_scale(given, how)
        if kept is not None and scale != kept:
            raise InputError(f"this cache has {side}_scale {kept}; a write cannot use another one ({scale})")
        return scale


def quantize_for(layout: Layout, x: NDArray[Any], recipe: Recipe, scale: np.float32 | None) -> Quantized:
    """Quantize x as a cache of this layout stores it: mode none rounds once to the layout's dtype, overflow to Inf."""
    if recipe.element is None:
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(_binary_dtype(layout))
    return quantize(x, recipe, scale=scale)


def store(layout: Layout, pages: NDArray[np.uint8], slots: NDArray[np.int64], side: Side, quantized: Quantized) -> None:
    """Write the codes and page scales of tokens into their slots; tokens with a negative slot are left out."""
    kept = slots >= 0
    block, slot = np.divmod(slots[kept], layout.block_size)
    tokens, heads = quantized.codes.shape[:2]
    codes = quantized.codes
    if quantized.recipe.element is not None and element(quantized.recipe.element).bits == 4:
        codes = pack_nibbles(codes)
    for region, whole in _parts(layout, side, codes, quantized.scales):
        rows = np.ascontiguousarray(whole).view(np.uint8).reshape(tokens, heads, region.row_bytes)
        region.write(pages, block, slot, rows[kept])


def load(
    layout: Layout,
    pages: NDArray[np.uint8],
    slots: NDArray[np.int64],
    side: Side,
    recipe: Recipe,
    tensor_scale: np.float32 | None,
) -> Quantized:
    """The codes and scales that lie in slots (none of them negative), unpacked as `quantize` gives them."""
    block, slot = np.divmod(slots, layout.block_size)
    shape = (len(slots), layout.num_kv_heads)
    code = layout.region(side=side)
    raw = code.read(pages, block, slot)
    if recipe.element is None:
        dtype = np.dtype(_binary_dtype(layout))
        return Quantized(raw.view(dtype), np.zeros(0, np.float32), np.float32(1), recipe)
    fmt = element(recipe.element)
    codes: NDArray[Any] = unpack_nibbles(raw) if fmt.bits == 4 else raw.view(np.int8) if fmt.kind == "integer" else raw
    if recipe.inner is None:
        return Quantized(codes, np.full(1, tensor_scale, np.float32), np.float32(1), recipe)
    rows = layout.region(side=side, part="scale").read(pages, block, slot)
    in_floats = recipe.inner.store == "float32"
    scales = rows.view("<f4").astype(np.float32).reshape(shape) if in_floats else rows
    return Quantized(codes, scales, np.float32(1 if tensor_scale is None else tensor_scale), recipe)


def _parts(layout: Layout, side: Side, codes: NDArray[Any], scales: NDArray[Any]) -> list[tuple[Region, NDArray[Any]]]:
    parts = [(layout.region(side=side), codes)]
    if any(region.side == side and region.part == "scale" for region in layout.regions):
        parts.append((layout.region(side=side, part="scale"), scales))
    return parts


def _binary_dtype(layout: Layout) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if layout.dtype == "bfloat16" else np.dtype(layout.dtype)


def _tensor_scale(quantized: Quantized) -> np.float32 | None:
    if not quantized.recipe.outer:
        return None
    return quantized.global_scale if quantized.recipe.inner else np.float32(quantized.scales[0])


def _recipe_for(layout: Layout, recipe: str | Recipe) -> Recipe:
    how = find_recipe(recipe)
    if how.mode != layout.mode:
        raise InputError(f"recipe {how.name} is for mode {how.mode}; this layout is for mode {layout.mode}")
    return how


def _check_shape(layout: Layout, side: Side, array: NDArray[Any], tokens: int) -> None:
    size = layout.head_size if side == "k" else layout.head_size_v
    if array.shape != (tokens, layout.num_kv_heads, size):
        wanted = (tokens, layout.num_kv_heads, size)
        raise InputError(f"{'key' if side == 'k' else 'value'} must have shape {wanted}; got {array.shape}")
