"""Cache tensors as engines hold them, to pages and back: no byte changes, and where it can be no byte moves.

What an engine holds comes in these forms, each a tensor or a tuple of tensors; an axis of slots and one of heads may
stand in either order, and strides are free but for the last axis, whose bytes lie side by side:

    pages        (blocks, page_bytes) uint8
    cells        (blocks, heads, slots, cell): vLLM 0.33, K and V of a head and slot in one cell, inline scales included
    page of 4-D  (blocks, 2 * heads, slots, head_size / 2 + head_size / 16): vLLM's nvfp4, a view of the page's bytes
    stacked      (blocks, 2, slots, heads, head_size), or 2 as the first axis: K and V one behind the other
    pair         (key, value), each (blocks, slots, heads, head_size), with inline scales behind each row if they fit
    with scales  (key, value, key_scale, value_scale), or ((key, value), (key_scale, value_scale)), or two stacked ones

Scales are (blocks, slots, heads) float32 or (blocks, slots, heads, columns) of one byte. Elements of a tensor are taken
where they lie: swizzled V scales stay swizzled, which is what the page holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from kvformat.errors import InputError
from kvformat.layouts import Layout, Region, layout
from kvformat.layouts.region import PartName, Side

Cache = torch.Tensor | Sequence[Any]


class Part(NamedTuple):
    """A part of the cache as bytes: (blocks, slots, heads, bytes of a row), in the engine's memory."""

    side: Side
    kind: PartName
    rows: torch.Tensor


def to_pages(cache: Cache, layout: Layout, *, axes: str | None = None) -> torch.Tensor:
    """The pages of an engine's cache: uint8 (num_blocks, page_bytes).

    It is the cache's own memory where the pages lie in it as the layout says, else a copy. axes: "NHD" or "HND", the
    order of a tensor's axes where there are as many heads as slots; by default the one that fits the strides. Raises
    InputError, naming what would be right, for tensors that are not in one of this module's forms.
    """
    tensors = _flat(cache)
    whole = _whole_pages(tensors, layout)
    if whole is not None:
        return whole
    parts = list(_parts(tensors, layout, axes))
    shared = _shared(parts, layout)
    if shared is not None:
        return shared
    first = parts[0].rows
    pages = torch.zeros((first.shape[0], layout.page_bytes), dtype=torch.uint8, device=first.device)
    for part in parts:
        _rows(pages, layout, part).copy_(part.rows)
    return pages


def from_pages(pages: torch.Tensor, cache: Cache, layout: Layout, *, axes: str | None = None) -> None:
    """Put pages back into an engine's cache, in place: the inverse of `to_pages`, with its arguments and errors."""
    tensors = _flat(cache)
    whole = _whole_pages(tensors, layout)
    if whole is not None:
        whole.copy_(pages)
        return
    for part in _parts(tensors, layout, axes):
        part.rows.copy_(_rows(pages, layout, part))


def layout_of(
    cache: Cache, name: str, mode: str, heads: int, sizes: tuple[int, int], *,
    order: str | None = None, block_size: int | None = None, **options: Any,
) -> Layout:  # fmt: skip
    """The layout of a cache for so many heads and those head sizes; what is not given is read off its tensors.

    order: "NHD" or "HND". Raises InputError where `pages` alone do not say how many slots they have.
    """
    first = _flat(cache)[0]
    if first.ndim == 2:
        if block_size is None:
            raise InputError("pages do not say how many slots they have; give block_size")
        return layout(
            name, mode=mode, order=order or "NHD", block_size=block_size, num_kv_heads=heads, head_size=sizes[0],
            head_size_v=sizes[1], page_bytes=first.shape[1], **options,
        )  # fmt: skip
    rows = {heads, 2 * heads} if len(_flat(cache)) == 1 else {heads}
    found = [axis for axis in (1, 2) if first.shape[axis] in rows]
    if not found:
        raise InputError(f"a cache tensor of shape {tuple(first.shape)} has no axis of {heads} heads")
    head = found[0] if len(found) == 1 else _head_axis(first, order)
    if order is None:
        order = "HND" if first.stride(head) > first.stride(3 - head) else "NHD"
    return layout(
        name, mode=mode, order=order, block_size=block_size or first.shape[3 - head], num_kv_heads=heads,
        head_size=sizes[0], head_size_v=sizes[1], **options,
    )  # fmt: skip


def _head_axis(x: torch.Tensor, order: str | None) -> int:
    # as many heads as slots: a single 4-D tensor is vLLM's (blocks, heads, slots, cell)
    outer = 1 if x.stride(1) >= x.stride(2) else 2
    return {"HND": outer, "NHD": 3 - outer}.get(order or "", 1)


def _flat(cache: Cache) -> list[torch.Tensor]:
    """The tensors of a cache, stacked ones taken apart."""
    if not isinstance(cache, torch.Tensor):
        return [each for item in cache for each in _flat(item)]
    if cache.ndim != 5:
        return [cache]
    twos = [axis for axis in (1, 0) if cache.shape[axis] == 2]
    if not twos:
        raise InputError(f"a 5-D cache stacks K and V on axis 0 or 1, of size 2; got shape {tuple(cache.shape)}")
    # two blocks: both axes have size 2, and FlashInfer and vLLM's FlashInfer backend stack on axis 1
    return list(cache.unbind(twos[0]))


def _whole_pages(tensors: list[torch.Tensor], layout: Layout) -> torch.Tensor | None:
    """The cache as pages if it is one tensor whose pages are dense memory in the layout's own order."""
    if len(tensors) != 1:
        return None
    (x,) = tensors
    if x.ndim == 2:
        if x.dtype != torch.uint8 or x.shape[1] != layout.page_bytes:
            raise InputError(f"pages must be uint8 (num_blocks, {layout.page_bytes}); got {x.dtype} {tuple(x.shape)}")
        return x
    if x.ndim != 4 or _is_cell(layout):
        return None
    held = x[0].numel() * x.element_size()
    dense = sorted(zip(x.stride()[1:], x.shape[1:], strict=True))
    step = 1
    for stride, size in dense:
        if size > 1 and stride != step:
            raise InputError(f"the bytes of a page must lie side by side; strides are {x.stride()}")
        step *= size
    if held != layout.natural_bytes:
        raise InputError(f"a page of this layout has {layout.natural_bytes} bytes; {tuple(x.shape)} has {held}")
    pages = _over(x, int(x.storage_offset()) * x.element_size(), x.stride(0) * x.element_size(), layout)
    if pages is None:
        raise InputError(f"pages of {layout.page_bytes} bytes do not fit the memory of {tuple(x.shape)}, {x.stride()}")
    return pages


def _over(x: torch.Tensor, start: int, stride: int, layout: Layout) -> torch.Tensor | None:
    """Pages over the memory of x, from byte `start` of its storage, `stride` bytes apart; None if they do not fit."""
    storage, blocks = x.untyped_storage(), x.shape[0]
    if start < 0 or (blocks > 1 and stride < layout.page_bytes):
        return None
    if start + stride * (blocks - 1) + layout.page_bytes > storage.nbytes():
        return None
    shape = (blocks, layout.page_bytes)
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage, start, shape, (stride, 1))


def _is_cell(layout: Layout) -> bool:
    cell = sum(region.row_bytes for region in layout.regions)
    return all(region.offset < cell and region.slot[-1].stride % (cell * 8) == 0 for region in layout.regions)


def _parts(tensors: list[torch.Tensor], layout: Layout, axes: str | None) -> Iterator[Part]:
    """The cache's parts, each checked against its region."""
    regions = {(region.side, region.part): region for region in _plain(layout).regions}
    if len(tensors) == 1:
        cells = _as_rows(tensors[0], layout, axes, "the cache", cells=True)
        width = sum(region.row_bytes for region in regions.values())
        if cells.shape[3] != width or not _is_cell(layout):
            raise InputError(f"a cell of this layout has {width} bytes; the tensor's last axis has {cells.shape[3]}")
        for (side, kind), region in regions.items():
            yield Part(side, kind, cells[..., region.offset : region.offset + region.row_bytes])
        return
    scaled = any(kind == "scale" for _, kind in regions)
    if len(tensors) not in ((2, 4) if scaled else (2,)):
        wanted = "key and value, then their scales or none" if scaled else "key and value"
        raise InputError(f"mode {layout.mode} of {layout.name} has {wanted}; got {len(tensors)} tensors")
    sides: tuple[Side, Side] = ("k", "v")
    for index, side in enumerate(sides):
        code = regions[side, "code"]
        rows = _as_rows(tensors[index], layout, axes, f"{side} codes")
        inline = regions[side, "scale"].row_bytes if scaled and len(tensors) == 2 else 0
        if rows.shape[3] != code.row_bytes + inline:
            raise InputError(
                f"a row of {code.name} has {code.row_bytes + inline} bytes{' with its scale' if inline else ''}; "
                f"the tensor's last axis has {rows.shape[3]}"
            )
        yield Part(side, "code", rows[..., : code.row_bytes])
        if scaled:
            scales = rows[..., code.row_bytes :] if inline else _scale_rows(tensors[2 + index], layout, axes, side)
            if scales.shape[3] != regions[side, "scale"].row_bytes:
                wide = regions[side, "scale"].row_bytes
                raise InputError(f"a row of {side} scales has {wide} bytes; the tensor's has {scales.shape[3]}")
            yield Part(side, "scale", scales)


def _scale_rows(x: torch.Tensor, layout: Layout, axes: str | None, side: str) -> torch.Tensor:
    return _as_rows(x.unsqueeze(-1) if x.ndim == 3 else x, layout, axes, f"{side} scales")


def _as_rows(x: torch.Tensor, layout: Layout, axes: str | None, what: str, *, cells: bool = False) -> torch.Tensor:
    """A 4-D tensor as bytes (blocks, slots, heads, bytes)."""
    slots, heads = layout.block_size, layout.num_kv_heads
    if x.ndim != 4 or {x.shape[1], x.shape[2]} != {slots, heads}:
        raise InputError(f"{what} must have axes of {slots} slots and {heads} heads; got shape {tuple(x.shape)}")
    if x.shape[3] > 1 and x.stride(3) != 1:
        raise InputError(f"{what} must have the bytes of a row side by side; got strides {x.stride()}")
    if slots != heads:
        head_first = x.shape[1] == heads
    elif axes is not None:
        head_first = axes == "HND"
    elif cells:
        head_first = True
    else:
        head_first = (layout.order == "HND") == (x.stride(1) >= x.stride(2))
    return (x.transpose(1, 2) if head_first else x).view(torch.uint8)


def _plain(layout_: Layout) -> Layout:
    """The same page with each scale where its tensor's element is: swizzles permute what the elements mean."""
    if layout_.v_scales in (None, "linear"):
        return layout_
    spec = {**layout_.spec, "v_scales": "linear"}
    return layout(spec.pop("name"), **spec)  # type: ignore[arg-type]


def _rows(pages: torch.Tensor, layout: Layout, part: Part) -> torch.Tensor:
    """A part's bytes in pages: (blocks, slots, heads, bytes)."""
    region = _region(layout, part)
    slot, head = _strides(region)
    shape = (pages.shape[0], region.slots, region.heads, region.row_bytes)
    return pages.as_strided(shape, (pages.stride(0), slot, head, 1), pages.storage_offset() + region.offset)


def _region(layout: Layout, part: Part) -> Region:
    return _plain(layout).region(side=part.side, part=part.kind)


def _strides(region: Region) -> tuple[int, int]:
    """Bytes from slot to slot and from head to head."""
    plain = len(region.slot) == len(region.head) == len(region.column) == 1 and region.column[0].stride == region.bits
    if not plain:
        raise InputError(f"{region.name}: a swizzle without a linear choice has no tensor of its own; take pages")
    return region.slot[0].stride // 8, region.head[0].stride // 8


def _shared(parts: list[Part], layout: Layout) -> torch.Tensor | None:
    """Pages over the cache's own memory, None where its parts do not lie as the layout says."""
    first = parts[0].rows
    start = int(first.storage_offset()) - _region(layout, parts[0]).offset
    for part in parts:
        region, rows = _region(layout, part), part.rows
        same = rows.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        strides = _strides(region)
        expected = ((1, first.stride(0)), (2, strides[0]), (3, strides[1]), (4, 1))
        sizes = (rows.shape[0], region.slots, region.heads, region.row_bytes)
        fits = all(
            size == 1 or rows.stride(axis - 1) == stride for (axis, stride), size in zip(expected, sizes, strict=True)
        )
        if not same or rows.storage_offset() - region.offset != start or not fits:
            return None
    return _over(first, start, first.stride(0), layout)
