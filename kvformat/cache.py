"""The paged cache: the one place where a recipe and a layout meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvformat.elements import threads
from kvformat.elements.codec import float_dtype, native, typed
from kvformat.elements.formats import element
from kvformat.elements.packing import pack_bits, unpack_bits
from kvformat.errors import InputError
from kvformat.layouts import Layout, Segment
from kvformat.layouts.page import as_integer
from kvformat.modes import MODES
from kvformat.modes import mode as find_mode
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Level, Recipe
from kvformat.recipes.quantizer import Quantized, checked, given_scale, quantize
from kvformat.slots import check_slots

Side = Literal["k", "v"]


@dataclass
class _Job:
    """What one write does with the dims of a side that one recipe covers."""

    segment: Segment
    #: (tokens, heads, dims of the segment)
    x: NDArray[Any]
    recipe: Recipe
    #: given, or found when the whole tensor is quantized
    scale: np.float32 | None

    @property
    def by_tokens(self) -> bool:
        """Whether what is stored for a token depends on no other one."""
        return not self.recipe.outer or self.scale is not None

    @property
    def tensor_scale(self) -> np.float32 | None:
        """The scale that a cache keeps, if the recipe has one for the tensor."""
        return self.scale if self.recipe.outer else None


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
        self.recipe: Recipe = _recipe_for(layout, None)
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
        value: ArrayLike | None,
        slot_mapping: ArrayLike,
        recipe: str | Recipe | None = None,
        k_scale: ArrayLike | None = None,
        v_scale: ArrayLike | None = None,
    ) -> None:
        """Quantize tokens and store them in their slots; no other byte changes.

        key, value: (tokens, num_kv_heads, head_size / head_size_v), float32, float16 or bfloat16; None for the value of
        a layout without V. slot_mapping: integers (tokens,); a negative slot writes nothing. recipe: if None the mode's
        golden recipe, or where it has none that of the layout's engine; dims that the layout gives a recipe of their
        own keep it. k_scale, v_scale: as in the constructor; without one, the first write computes it over all its
        tokens, padding included.

        Raises InputError, before anything is written, for shapes and dtypes that do not fit, a slot past the end or
        taken twice, a recipe of another mode, one whose codes are read in another way than those that the cache has, or
        a scale other than the one the cache has.
        """
        how = _recipe_for(self.layout, recipe)
        if self._written and how.value != self.recipe.value:
            held = f"this cache holds codes of {self.recipe.name}"
            raise InputError(f"{held}; those of {how.name} are read in another way")
        slots = check_slots(slot_mapping, self.num_slots)
        sides: dict[Side, NDArray[Any]] = {"k": checked(key, "key")}
        if "v" in self.layout.sides:
            sides["v"] = checked(() if value is None else value, "value")
        elif value is not None and native(value, "value").size:
            raise InputError(f"layout {self.layout.name} in mode {self.layout.mode} stores no V; leave value out")
        for side, array in sides.items():
            _check_shape(self.layout, side, array, len(slots))
        scales = {"k": self._scale("k", k_scale, how), "v": self._scale("v", v_scale, how)}
        jobs = [
            _Job(segment, array[..., _slice(segment)], *covering(segment, how, scales[side]))
            for side, array in sides.items()
            for segment in self.layout.segments(side)
        ]
        self._store(jobs, slots)
        self.recipe, self._written = how, True
        kept = {job.segment.side: job.tensor_scale for job in jobs if not job.segment.recipe}
        self.k_scale, self.v_scale = kept.get("k"), kept.get("v")

    def _store(self, jobs: list[_Job], slots: NDArray[np.int64]) -> None:
        """Quantize and store all tokens, tile by tile; what one of them refuses is refused before a byte is written."""
        if all(job.by_tokens for job in jobs):
            for job in jobs:
                quantize_for(self.layout, job.x[:1], job.recipe, job.scale, job.segment)

            def write(start: int, stop: int) -> None:
                for job in jobs:
                    made = quantize_for(self.layout, job.x[start:stop], job.recipe, job.scale, job.segment)
                    store(self.layout, self.pages, slots[start:stop], job.segment.side, made, job.segment)

            for _ in threads.in_order(write, threads.tiles(len(slots), self._row)):
                pass
            return
        made = [quantize_for(self.layout, job.x, job.recipe, job.scale, job.segment) for job in jobs]
        for job, quantized in zip(jobs, made, strict=True):
            job.scale = _tensor_scale(quantized)
            store(self.layout, self.pages, slots, job.segment.side, quantized, job.segment)

    @property
    def _row(self) -> int:
        """Elements of a token on its longer side."""
        return self.layout.num_kv_heads * max(self.layout.head_size, self.layout.head_size_v)

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

    def read(self, side: Side, slots: ArrayLike, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """What lies in slots, dequantized: (slots, num_kv_heads, head size) in the order of `slots`, none negative.

        dtype: as in `gather`. Raises InputError for a slot outside the cache, or a per-tensor scale that is not set.
        """
        wanted = native(slots, "slots")
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise InputError(f"slots must be integers of shape (tokens,); got {wanted.dtype} {wanted.shape}")
        outside = (wanted < 0) | (wanted >= self.num_slots)
        if outside.any():
            raise InputError(f"slot {wanted[outside][0]} is outside the cache; slots are 0..{self.num_slots - 1}")
        return self._gather_side(side, wanted.astype(np.int64), float_dtype(dtype))

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
        if side not in self.layout.sides:
            return np.zeros((len(slots), self.layout.num_kv_heads, 0), dtype)
        if scale is None and find_mode(self.layout.mode).tensor_scale:
            raise InputError(f"mode {self.layout.mode} needs a {side}_scale to be read: give one, or write first")
        out = np.empty((len(slots), self.layout.num_kv_heads, self._dims(side)), dtype)

        def read(start: int, stop: int) -> None:
            for segment in self.layout.segments(side):
                how = covering(segment, self.recipe, scale)
                found = load(self.layout, self.pages, slots[start:stop], side, *how, segment)
                out[start:stop, :, _slice(segment)] = found.dequantize(dtype)

        for _ in threads.in_order(read, threads.tiles(len(slots), self._row)):
            pass
        return out

    def _dims(self, side: Side) -> int:
        return self.layout.head_size if side == "k" else self.layout.head_size_v

    def _scale(self, side: Side, given: ArrayLike | None, how: Recipe) -> np.float32 | None:
        kept = self.k_scale if side == "k" else self.v_scale
        if given is None:
            return kept
        scale = given_scale(given, how)
        if kept is not None and scale != kept:
            raise InputError(f"this cache has {side}_scale {kept}; a write cannot use another one ({scale})")
        return scale


def covering(segment: Segment, recipe: Recipe, scale: np.float32 | None) -> tuple[Recipe, np.float32 | None]:
    """The recipe that covers a segment, that of the page or its own, and the per-tensor scale that it then has."""
    return (find_recipe(segment.recipe), None) if segment.recipe else (recipe, scale)


def check_fits(layout: Layout, recipe: Recipe) -> None:
    """Raises InputError, saying what differs, for a layout that has no place for what the recipe stores.

    Some modes have several records: recipes of mode fp8_ds_mla have scales of 32 or 8 bits, for 128 or 64 dims.
    """
    for side in layout.sides:
        for segment in layout.segments(side):
            how, _ = covering(segment, recipe, None)
            if not how.within_rows:
                kept = ", ".join(f"{level.name} {level.granularity.name}" for level in how.levels)
                raise InputError(
                    f"recipe {how.name} stores {kept}; layout {layout.name} takes parameters of groups within a row"
                )
            stored = how.for_input(layout.dtype or "float32").in_page
            regions = (*segment.scales, *segment.more)
            for part in dict.fromkeys(("scale", *stored, *(region.part for region in regions))):
                _check_part(layout, segment, how, part, stored.get(part))


def _check_part(layout: Layout, segment: Segment, how: Recipe, part: str, level: Level | None) -> None:
    """One parameter of a recipe, and its place in a layout."""
    held = [region for region in (*segment.scales, *segment.more) if region.part == part]
    wide = sum(region.columns * region.bits // region.copies for region in held)
    number = sum(region.columns for region in held)
    columns = 0 if level is None else level.granularity.columns(len(segment.dims))
    bits = 0 if level is None else level.format.bits
    if (number, wide) != (columns, columns * bits):
        found = f"{number} of {wide // number} bits" if number else "none"
        stored = f"{columns} {part}s of {bits} bits" if columns else f"no {part}s"
        where = f"layout {layout.name} in mode {layout.mode} has {found}"
        raise InputError(f"recipe {how.name} stores {stored} for {len(segment.dims)} dims; {where}")


def quantize_for(
    layout: Layout, x: NDArray[Any], recipe: Recipe, scale: np.float32 | None, segment: Segment | None = None
) -> Quantized:
    """Quantize x as a cache of this layout stores it: mode none rounds once to the stored dtype, overflow to Inf.

    x: the dims of `segment`, or of the layout's first one.
    """
    if recipe.element is None:
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(_binary_dtype(segment or layout.segments("k")[0]))
    elif layout.dtype not in (None, x.dtype.name):
        held = f"layout {layout.name} in mode {layout.mode} stores parameters as {layout.dtype}"
        raise InputError(f"{held}, the dtype of x; got {x.dtype.name}: make the layout with that dtype")
    return quantize(x, recipe, scale=scale)


def store(
    layout: Layout,
    pages: NDArray[np.uint8],
    slots: NDArray[np.int64],
    side: Side,
    quantized: Quantized,
    segment: Segment | None = None,
) -> None:
    """Write the codes and page scales of tokens into their slots; tokens with a negative slot are left out."""
    segment = segment or layout.segments(side)[0]
    kept = np.flatnonzero(slots >= 0)
    block, slot = np.divmod(slots[kept], layout.block_size)
    tokens, heads = quantized.codes.shape[:2]
    how = quantized.recipe
    bits = 8 if how.element is None else element(how.element).bits
    parts = []
    for region in segment.codes:
        start = region.first_dim - segment.dims.start
        codes = quantized.codes[..., start : start + region.columns]
        if region.bits < bits:  # a plane of some of their bits
            codes = codes.view(np.uint8) >> np.uint8(region.first_bit) & np.uint8((1 << region.bits) - 1)
        parts.append((region, pack_bits(codes, min(region.bits, bits)) if min(region.bits, bits) < 8 else codes))
    parts += [(region, np.repeat(quantized.scales, region.copies, axis=-1)) for region in segment.scales]
    parts += [(region, quantized.more[region.part]) for region in segment.more]
    for region, whole in parts:
        rows = np.ascontiguousarray(whole).view(np.uint8).reshape(tokens, heads, region.row_bytes)
        region.write(pages, block, slot, rows if len(kept) == tokens else rows[kept])


def load(
    layout: Layout,
    pages: NDArray[np.uint8],
    slots: NDArray[np.int64],
    side: Side,
    recipe: Recipe,
    tensor_scale: np.float32 | None,
    segment: Segment | None = None,
) -> Quantized:
    """The codes and scales that lie in slots (none of them negative), unpacked as `quantize` gives them.

    Of a scale that lies there several times, the first copy.
    """
    segment = segment or layout.segments(side)[0]
    block, slot = np.divmod(slots, layout.block_size)
    if layout.dtype and recipe.element is not None:
        recipe = recipe.for_input(layout.dtype)
    joined = _codes(pages, block, slot, recipe, segment)
    if recipe.element is None:
        return Quantized(joined, np.zeros(0, np.float32), np.float32(1), recipe)
    if recipe.inner is None:
        return Quantized(joined, np.full(1, tensor_scale, np.float32), np.float32(1), recipe)
    (region,) = segment.scales
    rows = region.read(pages, block, slot)[..., :: region.copies]
    share = recipe.inner.granularity
    per_row = (*joined.shape[:2], share.columns(joined.shape[2])) if share.dims else joined.shape[:2]
    scales = recipe.inner.format.of_bytes(rows).reshape(per_row)
    more = {}
    for region in segment.more:
        level = recipe.in_page[region.part]
        shape = (*joined.shape[:2], level.granularity.columns(joined.shape[2]))
        more[region.part] = level.format.of_bytes(region.read(pages, block, slot)).reshape(shape)
    return Quantized(joined, scales, np.float32(1 if tensor_scale is None else tensor_scale), recipe, more)


def _codes(
    pages: NDArray[np.uint8], block: NDArray[np.int64], slot: NDArray[np.int64], recipe: Recipe, segment: Segment
) -> NDArray[Any]:
    """The codes of a segment's rows, one per element, the planes of their bits put together."""
    if recipe.element is None:
        dtype = np.dtype(_binary_dtype(segment))
        values = [region.read(pages, block, slot).view(dtype) for region in segment.codes]
        return values[0] if len(values) == 1 else np.concatenate(values, axis=-1)
    fmt = element(recipe.element)
    runs: dict[int, NDArray[np.uint8]] = {}
    for region in segment.codes:
        bits = min(region.bits, fmt.bits)
        patterns = unpack_bits(region.read(pages, block, slot), bits)
        if region.first_bit:
            patterns <<= np.uint8(region.first_bit)
        below = runs.get(region.first_dim)
        runs[region.first_dim] = patterns if below is None else below | patterns
    whole = [typed(patterns, fmt) for patterns in runs.values()]
    return whole[0] if len(whole) == 1 else np.concatenate(whole, axis=-1)


def _slice(segment: Segment) -> slice:
    return slice(segment.dims.start, segment.dims.stop)


def _binary_dtype(segment: Segment) -> Any:
    import ml_dtypes

    dtype = segment.codes[0].dtype
    return ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)


def _tensor_scale(quantized: Quantized) -> np.float32 | None:
    if not quantized.recipe.outer:
        return None
    return quantized.global_scale if quantized.recipe.inner else np.float32(quantized.scales[0])


def _recipe_for(layout: Layout, recipe: str | Recipe | None) -> Recipe:
    """The recipe asked for; without one the golden recipe of the layout's mode, or that of the layout's engine."""
    default = layout.mode if layout.mode in MODES else layout.recipe
    how = find_recipe(default if recipe is None else recipe)
    if how.mode != layout.mode:
        raise InputError(f"recipe {how.name} is for mode {how.mode}; this layout is for mode {layout.mode}")
    check_fits(layout, how)
    return how


def _check_shape(layout: Layout, side: Side, array: NDArray[Any], tokens: int) -> None:
    size = layout.head_size if side == "k" else layout.head_size_v
    if array.shape != (tokens, layout.num_kv_heads, size):
        wanted = (tokens, layout.num_kv_heads, size)
        raise InputError(f"{'key' if side == 'k' else 'value'} must have shape {wanted}; got {array.shape}")
