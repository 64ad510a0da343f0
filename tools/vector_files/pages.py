"""Vectors for pages: K, V and slots in, the bytes of the pages out; every layout, mode, order and place of scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import kvformat
from kvformat.cache import PagedCache
from kvformat.elements import exact as elements
from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.layouts import LAYOUTS, Layout, Region, Segment, layout
from kvformat.layouts.entry import Entry, Form
from kvformat.modes import MODES
from kvformat.modes import mode as find_mode
from kvformat.recipes import exact
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.program import Recipe
from kvformat.verify import plain
from vector_files.cases import Case
from vector_files.files import Group, Test, VectorFile, bits_hex
from vector_files.recipes import is_certain
from vector_files.sources import SOURCES

Array = NDArray[Any]

_HEADER = (
    (
        "layout: the arguments of kvformat.layout. key, value: bit patterns in the format `source`, big-endian hex, "
        "row-major in the shape (tokens, heads, head size); value is null where the layout stores no V."
    ),
    "slotMapping: the slot of each token, block * blockSize + place in the block; a negative slot writes nothing.",
    (
        "pages: each page's bytes, hex, after the write. Before it every byte is `fill`; a byte that no token of "
        "slotMapping owns keeps it. Bytes that are padding are judged by nobody."
    ),
    "kScale, vScale: the per-tensor scales, binary32 bit patterns, where the recipe takes them.",
    "result valid: exactly these bytes. acceptable: see the note on Approximate.",
)
_NOTES = {
    "Natural": "the page has its natural size",
    "PagePadding": "the page is larger than what it holds: pageBytes leaves a gap behind it",
    "HighNibbleFirst": "of two 4-bit codes in a byte, that of the even dim is the high one",
    "Approximate": "the recipe has an approximate instruction whose bound allows other results than this one",
}
_BLOCK_SIZES, _BLOCKS, _FILL = (4, 32, 64, 128), 2, 0xA5
#: two blocks, out of order, and a token that is not written
_SLOTS = np.array([6, 1, -1, 3], np.int64)
_SCALES = {"k": np.float32(0.0371), "v": np.float32(0.0123)}


def files() -> Iterator[tuple[str, Callable[[], VectorFile]]]:
    """Path under spec/vectors/ and what makes the file, for each layout of the catalogue."""
    for entry in LAYOUTS.values():
        yield f"pages/{entry.name}.json", partial(_file, entry)


def _file(entry: Entry) -> VectorFile:
    groups = [_group(made) for made in _pages(entry)]
    return VectorFile(f"pages of {entry.name}", "page", _HEADER, groups, _NOTES, SOURCES)


def _pages(entry: Entry) -> Iterator[list[tuple[str, Layout]]]:
    """The pages of each mode, order and choice of V scales: the natural one, and what can be done to it."""
    for mode, form in entry.modes:
        for order in form.orders:
            for choice in [name for name, _ in form.v_scales] or [None]:
                how = {"mode": mode, "order": order, "v_scales": choice, **_sizes(entry, mode, order, form)}
                pages = [("Natural", layout(entry.name, **how))]
                if order == form.orders[0] and choice in (None, form.v_scales[0][0] if form.v_scales else None):
                    pages += _variants(entry, how, pages[0][1])
                yield pages


def _variants(entry: Entry, how: dict[str, Any], natural: Layout) -> Iterator[tuple[str, Layout]]:
    if natural.mode == entry.modes[0][0]:
        yield "PagePadding", layout(entry.name, **how, page_bytes=natural.page_bytes + 24)
    stored = find_mode(natural.mode).element
    if stored is not None and element(stored).bits == 4:
        yield "HighNibbleFirst", layout(entry.name, **how, nibbles="high_first")


def _sizes(entry: Entry, mode: str, order: str, form: Form) -> dict[str, int]:
    """The smallest page that shows everything: the first block size that the layout's swizzles take."""
    heads, dims = form.num_kv_heads or 2, form.head_size or 64
    for block_size in _BLOCK_SIZES:
        sizes = {"block_size": block_size, "num_kv_heads": heads, "head_size": dims}
        with suppress(InputError):
            layout(entry.name, mode=mode, order=order, **sizes)
            return sizes
    raise AssertionError(f"{entry.name} {mode}: no page of {heads} heads of {dims} dims; give _sizes another one")


def recipe_of(page: Layout) -> Recipe:
    """The golden recipe of the page's mode, or where there is none that of the layout's engine."""
    return find(page.mode if page.mode in MODES else page.recipe)


def _group(pages: list[tuple[str, Layout]]) -> Group:
    natural, recipe = pages[0][1], recipe_of(pages[0][1])
    tests, names = [], {"exact twin", "kvformat"}
    for flag, page in pages:
        test, more = _test(flag, page, recipe)
        tests.append(test)
        names = names | more
    about = {
        "id": "/".join(filter(None, (natural.mode, natural.order, natural.v_scales))),
        "type": "PageWrite",
        "layout": natural.name,
        "mode": natural.mode,
        "recipe": recipe.name,
        "source": "bfloat16",
        "blockSize": natural.block_size,
        "numKvHeads": natural.num_kv_heads,
        "headSize": natural.head_size,
        "headSizeV": natural.head_size_v if "v" in natural.sides else 0,
        "confirmedBy": [name for name in SOURCES if name in names | {"locate"}],
    }
    return Group(about, tests)


def _test(flag: str, page: Layout, recipe: Recipe) -> tuple[Test, set[str]]:
    sides = {side: _tensor(page, side) for side in page.sides}
    takes = any(level.may_be_given for level in recipe.levels)
    scales = {side: _SCALES[side] if takes else None for side in page.sides}
    cache = PagedCache(page, _BLOCKS, **{f"{side}_scale": scale for side, scale in scales.items()})
    cache.pages[...] = _FILL
    cache.write(sides["k"], sides.get("v"), _SLOTS, recipe=recipe)
    placed = _placed(page, recipe, sides, scales)
    assert np.array_equal(cache.pages, placed), (page.name, page.mode, page.order, page.v_scales)
    sources = set()
    if _has_plain_writer(page, recipe):
        _check_plain(page)
        sources = {"plain writer"}
    valid = all(
        _certain(page, segment, recipe, sides, scales) for side in page.sides for segment in page.segments(side)
    )
    return {
        "id": flag.lower() if flag != "PagePadding" else "padded",
        "flags": [flag] if valid else [flag, "Approximate"],
        "result": "valid" if valid else "acceptable",
        "arguments": page.spec,
        "pageBytes": page.page_bytes,
        "kScale": _bits(scales.get("k")),
        "vScale": _bits(scales.get("v")),
        "slotMapping": _SLOTS.tolist(),
        "fill": f"{_FILL:02X}",
        "key": "".join(bits_hex(sides["k"])),
        "value": "".join(bits_hex(sides["v"])) if "v" in sides else None,
        "pages": [bytes(each).hex().upper() for each in cache.pages],
    }, sources


def _bits(scale: np.float32 | None) -> str | None:
    return None if scale is None else bits_hex(np.array([scale]))[0]


def _tensor(page: Layout, side: str) -> Array:
    """Small multiples of 1/8 with a large first token: the same for every layout of one size."""
    dims = page.head_size if side == "k" else page.head_size_v
    rng = np.random.default_rng({"k": 3, "v": 4}[side])
    x = rng.integers(-127, 128, (len(_SLOTS), page.num_kv_heads, dims)) / 8
    x[0] *= 8
    return x.astype(ml_dtypes.bfloat16)


# --- the twin's codes, put into their bytes one at a time ------------------------------------------------------------


def _placed(page: Layout, recipe: Recipe, sides: dict[str, Array], scales: dict[str, np.float32 | None]) -> Array:
    pages = np.full((_BLOCKS, page.page_bytes), _FILL, np.uint8)
    for side, x in sides.items():
        for segment in page.segments(side):  # type: ignore[arg-type]
            how, given = _covering(segment, recipe, scales[side])
            part = x[..., segment.dims.start : segment.dims.stop]
            codes, stored = _twin(part, how, given, segment)
            for token, slot in enumerate(_SLOTS.tolist()):
                if slot >= 0:
                    block, place = divmod(slot, page.block_size)
                    for head in range(page.num_kv_heads):
                        _place(pages[block], page, segment, place, head, codes[token, head], stored[token][head])
    return pages


def _covering(segment: Segment, recipe: Recipe, scale: np.float32 | None) -> tuple[Recipe, np.float32 | None]:
    return (find(segment.recipe), None) if segment.recipe else (recipe, scale)


def _twin(x: Array, how: Recipe, given: np.float32 | None, segment: Segment) -> tuple[Array, list[list[list[int]]]]:
    """The codes of each element as patterns, and of each token and head the bit patterns of its scales."""
    nothing: list[list[list[int]]] = [[[] for _ in range(x.shape[1])] for _ in range(x.shape[0])]
    if how.element is None:
        return _stored_values(x, segment.codes[0].dtype), nothing
    made = exact.quantize_all(x, how, _given(how, given))
    codes = made.codes
    patterns = codes.view(np.uint8) & np.uint8(element(how.element).codes - 1)
    if how.inner is None:
        return patterns, nothing
    kept = [made.params[level.name] for level in how.in_page.values()]
    rows = [each.view(f"u{each.itemsize}").reshape(*x.shape[:2], -1).tolist() for each in kept]
    return patterns, [
        [[bits for each in rows for bits in each[token][head]] for head in range(x.shape[1])]
        for token in range(x.shape[0])
    ]


def _given(how: Recipe, scale: np.float32 | None) -> dict[str, float]:
    takes = [level.name for level in how.levels if level.may_be_given][:1]
    return {} if scale is None else {name: float(scale) for name in takes}


def _stored_values(x: Array, dtype: str) -> Array:
    numbers = [elements.round_binary(elements.number(float(each)), elements.BINARIES[dtype]) for each in x.reshape(-1)]
    target = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    return np.array([float(n) for n in numbers]).astype(target).view(f"u{target.itemsize}").reshape(x.shape)


def _place(page: Array, made: Layout, segment: Segment, slot: int, head: int, codes: Array, scales: list[int]) -> None:
    side = segment.side
    for dim, code in zip(segment.dims, codes.tolist(), strict=True):
        for region in (each for each in segment.codes if dim in each.all_dims):
            where = made.locate(side=side, slot=slot, head=head, dim=dim, bit=region.first_bit)
            piece = code >> region.first_bit & ((1 << where.bits) - 1)
            _put(page, where.byte, where.bit, where.bits, piece)
    params = sorted((*segment.scales, *segment.more), key=lambda each: made.parts.index(each.part))
    columns = [(region, column) for region in params for column in range(region.columns)]
    for (region, column), bits in zip(columns, scales, strict=True):
        where = made.locate(side=side, slot=slot, head=head, dim=region.dims(column).start, part=region.part)
        _put(page, where.byte, where.bit, where.bits, _repeated(bits, region))


def _repeated(bits: int, region: Region) -> int:
    once = region.bits // region.copies
    return sum(bits << once * copy for copy in range(region.copies))


def _put(page: Array, byte: int, bit: int, bits: int, pattern: int) -> None:
    count = -(-(bit + bits) // 8)
    value = int.from_bytes(page[byte : byte + count].tobytes(), "little")
    mask = ((1 << bits) - 1) << bit
    page[byte : byte + count] = list((value & ~mask | pattern << bit).to_bytes(count, "little"))


def _certain(
    page: Layout, segment: Segment, recipe: Recipe, sides: dict[str, Array], scales: dict[str, np.float32 | None]
) -> bool:
    """Whether the recipe's approximate instructions leave no other byte open in this segment."""
    how, given = _covering(segment, recipe, scales[segment.side])
    if how.element is None:
        return True
    x = sides[segment.side][..., segment.dims.start : segment.dims.stop]
    return is_certain(how, Case(page.name, "", x, given), kvformat.quantize(x, how, scale=given))


# --- the writer that shares nothing ----------------------------------------------------------------------------------


def _has_plain_writer(page: Layout, recipe: Recipe) -> bool:
    natural = page.page_bytes == page.natural_bytes and page.nibbles is None
    return natural and page.name in ("vllm-0.33", "flashinfer") and recipe.name.startswith("golden/")


def _check_plain(page: Layout) -> None:
    """Raises AssertionError unless the plain writer, which computes per-tensor scales itself, gives the same pages."""
    sides = {side: _tensor(page, side) for side in page.sides}
    cache = PagedCache(page, _BLOCKS)
    cache.write(sides["k"], sides["v"], _SLOTS)
    pages = plain.write_pages(
        page.name,
        page.mode,
        page.order,
        sides["k"],
        sides["v"],
        _SLOTS,
        block_size=page.block_size,
        num_blocks=_BLOCKS,
        v_scales=page.v_scales,
    )
    assert np.array_equal(cache.pages, pages), (page.name, page.mode, page.order)
