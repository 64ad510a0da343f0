"""From one layout's pages to another's: the same codes and scales at other bytes, or a refusal that names the byte.

Pure geometry: no code and no scale changes. Where a page lies in several tensors of its engine, `split` and `join` go
between the page and what each tensor holds of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.layouts.page import Layout
from kvformat.layouts.region import PARTS, SIDES, Bytes, Region

#: bytes of source pages that are rearranged at once
_CHUNK = 1 << 24
#: what two layouts must have alike to be one cache
_ALIKE = ("mode", "dtype", "num_kv_heads", "head_size", "head_size_v")


def rearrange(pages: Bytes, source: Layout, target: Layout, *, drop_padding: bool = False) -> Bytes:
    """The same cache in another layout: uint8 (num_blocks, target.page_bytes), its padding zero.

    pages: uint8 (num_blocks, source.page_bytes). A slot keeps its number, block * block_size + position, so a slot
    mapping stays what it is; with another block_size there are more or fewer pages. Raises InputError where something
    would be lost, and says what: a layout that stores other entries, slots that do not fill whole blocks, a byte of
    padding that is not zero (with `drop_padding` it goes).
    """
    _check_pages(pages, source)
    _check_entries(source, target)
    slots = len(pages) * source.block_size
    if slots % target.block_size:
        whole = f"{len(pages)} pages of {source.block_size} slots"
        raise InputError(f"{whole} do not fill blocks of {target.block_size}: a part of the last one would be made up")
    if not drop_padding:
        _check_padding(pages, source)
    made = np.zeros((slots // target.block_size, target.page_bytes), np.uint8)
    step = max(1, _CHUNK // source.page_bytes) * source.block_size
    for start in range(0, slots, step):
        taken = np.arange(start, min(start + step, slots))
        here, there = (np.divmod(taken, layout.block_size) for layout in (source, target))
        for region in target.regions:
            pieces = [source_region.read(pages, *here)[..., part] for source_region, part in _sources(source, region)]
            region.write(made, *there, pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=-1))
    return made


def owned(layout: Layout) -> NDArray[np.bool_]:
    """Which bytes of a page hold codes or scales: bool (page_bytes,). The others are padding."""
    page = np.zeros((1, layout.page_bytes), np.uint8)
    slots = np.arange(layout.block_size)
    for region in layout.regions:
        ones = np.full((layout.block_size, layout.num_kv_heads, region.row_bytes), 0xFF, np.uint8)
        region.write(page, np.zeros_like(slots), slots, ones)
    held: NDArray[np.bool_] = page[0] != 0
    return held


def split(layout: Layout, pages: Bytes) -> dict[str, Bytes]:
    """What each tensor of the engine holds of the pages, by its name: uint8 (num_blocks, bytes), views of `pages`.

    A page that lies in one tensor only is there under "". The padding of the page goes with its last tensor.
    """
    _check_pages(pages, layout)
    parts, start = {}, 0
    for number, (name, size) in enumerate(layout.tensors, 1):
        stop = layout.page_bytes if number == len(layout.tensors) else start + size
        parts[name] = pages[:, start:stop]
        start = stop
    return parts


def join(layout: Layout, tensors: Mapping[str, Bytes]) -> Bytes:
    """The pages whose parts lie in these tensors: `split` inverted. Raises InputError for other names or shapes."""
    names = [name for name, _ in layout.tensors]
    if sorted(tensors) != sorted(names):
        raise InputError(f"layout {layout.name} lies in {', '.join(names)}; got {', '.join(sorted(tensors))}")
    pages = np.concatenate([tensors[name] for name in names], axis=1)
    _check_pages(pages, layout)
    return pages


def _sources(source: Layout, target: Region) -> list[tuple[Region, slice]]:
    """The regions of the source that hold a region's rows, in order, and the bytes of their rows that do."""
    found = []
    for region in sorted(_regions(source, target.side, target.part), key=lambda region: region.first_dim):
        start = max(region.first_dim, target.first_dim)
        stop = min(region.all_dims.stop, target.all_dims.stop)
        if start < stop:
            bounds = ((dim - region.first_dim) // region.dims_per_entry * region.bits // 8 for dim in (start, stop))
            found.append((region, slice(*bounds)))
    return found


def _regions(layout: Layout, side: str, part: str) -> list[Region]:
    return [region for region in layout.regions if (region.side, region.part) == (side, part)]


def _check_pages(pages: Bytes, layout: Layout) -> None:
    if pages.dtype != np.uint8 or pages.ndim != 2 or pages.shape[1] != layout.page_bytes:
        wanted = f"uint8 (num_blocks, {layout.page_bytes})"
        raise InputError(f"pages must be {wanted} for layout {layout.name}; got {pages.dtype} {pages.shape}")


def _check_entries(source: Layout, target: Layout) -> None:
    """Both store the same entries: for each dim the same width, and the same dims a scale."""
    for name in _ALIKE:
        here, there = (getattr(layout, name) for layout in (source, target))
        if here != there:
            raise InputError(
                f"the pages have {name} {here}, those of the target {there}; nothing converts one to the other"
            )
    for side, part in product(SIDES, PARTS):
        here, there = (_entries(layout, side, part) for layout in (source, target))
        if here != there:
            lacking = f"{target.name} stores {_told(there)} where {source.name} stores {_told(here)}"
            raise InputError(f"{side.upper()} {part}s would be lost: {lacking}")


def _entries(layout: Layout, side: str, part: str) -> dict[int, tuple[int, int, int, str]]:
    """By dim, which entry stands for it: the dim it begins at, its bits, its copies, its dtype."""
    return {
        dim: (region.dims(column).start, region.bits, region.copies, region.dtype)
        for region in _regions(layout, side, part)
        for column in range(region.columns)
        for dim in region.dims(column)
    }


def _told(entries: dict[int, tuple[int, int, int, str]]) -> str:
    if not entries:
        return "none"
    widths = {bits for _, bits, _, _ in entries.values()}
    return f"{len(set(entries.values()))} of {' and '.join(map(str, sorted(widths)))} bits a head"


def _check_padding(pages: Bytes, source: Layout) -> None:
    padding = np.flatnonzero(~owned(source))
    if not len(padding):
        return
    step = max(1, _CHUNK // source.page_bytes)
    for start in range(0, len(pages), step):
        held = pages[start : start + step, padding]
        if held.any():
            page, byte = np.unravel_index(int(np.argmax(held != 0)), held.shape)
            what = f"byte {padding[byte]} of page {start + page} is padding and holds 0x{held[page, byte]:02X}"
            raise InputError(f"{what}, which would be lost; drop the padding, or clear it first")
