"""What every hypothesis describes: the bytes of whole pages, and what a writer's rows come to in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose.fault import Variant
from kvformat.diagnose.remaps import SIDES, Packing, Part, Places
from kvformat.diagnose.rows import Rows, is_nan
from kvformat.dump.dump import Dump
from kvformat.elements.formats import ELEMENTS, element
from kvformat.elements.packing import pack_bits, unpack_bits
from kvformat.layouts import Region, Segment
from kvformat.verify.identify import Side

Mask = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Canvas:
    """The pages of some blocks of a dump, whole."""

    def __init__(self, dump: Dump, blocks: Ints | None = None) -> None:
        self.dump = dump
        self.whole = blocks is None or len(blocks) == len(dump.pages)
        self.blocks: Ints = np.arange(len(dump.pages)) if blocks is None else blocks
        pages = dump.pages if self.whole else dump.pages[self.blocks]
        self.found: Bytes = np.ascontiguousarray(pages).reshape(-1)
        before = dump.pages_before
        #: what the same pages held before the write, where the dump says so
        self.before: Bytes | None = None if before is None else np.ascontiguousarray(before[self.blocks]).reshape(-1)
        self._place = np.full(len(dump.pages), -1, np.int64)
        self._place[self.blocks] = np.arange(len(self.blocks))
        self._last: dict[tuple[Part, int, int], tuple[Ints, Ints]] = {}

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.found)

    def index(self, addresses: Ints) -> Ints:
        """Places in `found` of addresses in all pages; -1 for what lies elsewhere."""
        inside = (addresses >= 0) & (addresses < self.dump.pages.size)
        if self.whole:
            return addresses if inside.all() else np.where(inside, addresses, -1)
        block, byte = np.divmod(np.where(inside, addresses, 0), self.dump.layout.page_bytes)
        place = self._place[block]
        return np.where(inside & (place >= 0), place * self.dump.layout.page_bytes + byte, -1)

    def indices(self, addresses: Ints, where: Part, start: int, stop: int) -> Ints:
        """`index` of some columns of a part's rows, flat; the last one is kept: many writers have the same places."""
        kept = self._last.get((where, start, stop))
        if kept is None or kept[0] is not addresses:
            kept = addresses, self.index(addresses[..., start:stop]).reshape(-1)
            self._last[where, start, stop] = kept
        return kept[1]

    def tokens(self) -> Ints:
        """The tokens whose slots lie in it, in order."""
        slots = self.dump.slot_mapping
        return np.flatnonzero((slots >= 0) & (self._place[np.maximum(slots, 0) // self.dump.layout.block_size] >= 0))


@dataclass(frozen=True)
class Strip:
    """One side of some tokens as a writer leaves it: the codes of all rows, then the scales of all rows, flat."""

    #: places in the canvas; -1 where a byte lies outside of it
    at: Ints
    value: Bytes
    #: False: the hypothesis says nothing of the byte
    known: Mask

    @cached_property
    def digest(self) -> tuple[bytes, bytes]:
        """What tells its bytes from those of another one at the same places."""
        return self.value.tobytes(), self.known.tobytes()


@dataclass(frozen=True)
class Labels:
    """Whose each byte of a strip is: its token (place among the canvas's tokens), head and first dim, -1 for none."""

    token: Ints
    head: Ints
    dim: Ints


def strip(
    canvas: Canvas, pieces: Sequence[tuple[Segment, Rows]], side: Side, places: Places, variant: Variant
) -> Strip | None:
    """What a writer's rows come to where a geometry puts them; None where they do not fit there."""
    parts: list[tuple[Ints, Bytes, Mask]] = []
    for part in ("code", "scale"):
        column = 0
        for segment, rows in pieces:
            stored = _stored(segment, rows, part, places, canvas.dump.layout.nibbles == "high_first")
            if not stored.size:
                continue
            width = stored.shape[2]
            where: Part = (side, part)
            start, column = column, column + width
            if where not in places.at:
                parts.append((np.full(stored.size, -1), stored.reshape(-1), np.zeros(stored.size, bool)))
                continue
            addresses = places.at[where]
            if addresses[..., start:column].shape != stored.shape:
                return None
            at = canvas.indices(addresses, where, start, column)
            made = _known(canvas, at, stored, rows, part, places, variant)
            if made is None:
                return None
            parts.append(made)
        if (side, part) in places.at and column not in (0, places.at[side, part].shape[2]):
            return None
    if not parts:
        return None
    return Strip(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


def _stored(segment: Segment, rows: Rows, part: str, places: Places, high_first: bool) -> Bytes:
    if part == "code":
        return packed(segment, rows, places.packing, high_first=high_first)
    copies = segment.scales[0].copies if segment.scales else 1
    return np.repeat(rows.scales, copies, axis=2) if copies > 1 else rows.scales


def _known(
    canvas: Canvas, at: Ints, stored: Bytes, rows: Rows, part: str, places: Places, variant: Variant
) -> tuple[Ints, Bytes, Mask] | None:
    """Places, values and what is said, flat. A NaN is any NaN of its format."""
    scale = part == "scale"
    flat, value = at, stored.reshape(-1)
    known = np.ones(value.shape, bool)
    if rows.known is not None:
        known &= np.repeat(rows.known, value.size // len(rows.known))
    if rows.predicted is not None:
        known &= rows.predicted[int(scale)].reshape(-1)
    if scale and rows.any_scale:
        known[:] = False
    found = canvas.found[flat]  # of -1: any byte, which is not looked at
    if variant.unwritten and variant.unwritten_part in ("", part):
        if variant.unwritten == "constant":
            return flat, np.full_like(value, variant.fill), known
        return (flat, canvas.before[flat], known) if canvas.before is not None else None
    if scale and places.blank_scales:
        fill = commonest(found[flat >= 0])
        one = rows.scale_dtype in ELEMENTS and element(rows.scale_dtype).values()[fill] == 1
        return None if one else (flat, np.full_like(value, fill), known)
    nan = rows.nan_scales if scale else rows.nan_codes
    if nan.size and nan.max(initial=0) < value.size:
        dtype = rows.scale_dtype if scale else rows.code_dtype
        same = nan[is_nan(np.ascontiguousarray(found.reshape(stored.shape)), dtype)[nan] & (flat[nan] >= 0)]
        value = value.copy()
        value[same] = found[same]
    return flat, value, known


def commonest(values: Bytes) -> int:
    """The byte that most of them are."""
    return int(np.bincount(values, minlength=256).argmax())


def labels(pieces: Sequence[tuple[Segment, Rows]]) -> Labels:
    """Whose the bytes of a strip of these rows are."""
    made: list[tuple[Ints, Ints, Ints]] = []
    for part in ("code", "scale"):
        for segment, rows in pieces:
            dims = _dims(segment, rows, part)
            if len(dims):
                tokens, heads = rows.codes.shape[:2]
                grid = np.meshgrid(np.arange(tokens), np.arange(heads), dims, indexing="ij")
                made.append(tuple(each.reshape(-1) for each in grid))  # type: ignore[arg-type]
    return Labels(*(np.concatenate(arrays) for arrays in zip(*made, strict=True)))


def _dims(segment: Segment, rows: Rows, part: str) -> Ints:
    """By byte of a row the first dim that it is about; -1 where it is about all of them."""
    if part == "code":
        planes = [region.order[:: max(8 // region.bits, 1)] + region.first_dim for region in _in_order(segment)]
        if rows.bits > 8:  # values in whole bytes
            return np.repeat(np.concatenate(planes), rows.bits // 8)
        if any(8 % region.bits for region in segment.codes):
            return segment.dims.start + np.arange(len(segment.dims) * rows.bits // 8) * 8 // rows.bits
        return np.concatenate(planes)
    if not rows.scales.size:
        return np.zeros(0, np.int64)
    copies = segment.scales[0].copies
    entries = sum(region.columns for region in segment.scales)
    each = rows.scales.shape[2] * copies // entries
    if entries == 1:
        return np.full(each, -1)
    return segment.dims.start + np.repeat(np.arange(entries) * (len(segment.dims) // entries), each)


class Image:
    """All bytes of a canvas as a hypothesis has them."""

    def __init__(self, canvas: Canvas) -> None:
        self.canvas = canvas
        self.value: Bytes = np.zeros(canvas.size, np.uint8)
        self.known: Mask = np.zeros(canvas.size, bool)

    def paint(self, strips: Sequence[Strip], *, overlapping: bool = False) -> None:
        """Put what strips say on it. overlapping: rows lie on each other, and any of them may be the last."""
        for each in strips:
            said = each.known & (each.at >= 0)
            at, value = each.at[said], each.value[said]
            self.value[at] = value
            self.known[at] = True
        for each in strips if overlapping else ():
            said = each.known & (each.at >= 0)
            at = each.at[said]
            right = each.value[said] == self.canvas.found[at]
            self.value[at[right]] = each.value[said][right]

    @property
    def wrong(self) -> Ints:
        """The places of the bytes that are not as it says."""
        return np.flatnonzero(self.known & (self.value != self.canvas.found))


def packed(segment: Segment, rows: Rows, packing: Packing, *, high_first: bool = False) -> Bytes:
    """The codes of rows as they lie in the page: (tokens, heads, bytes), one plane of their bits after the other."""
    if rows.bits >= 8:
        return rows.codes
    start, planes = segment.dims.start, []
    for region in _in_order(segment):
        codes = rows.codes[..., region.first_dim - start : region.first_dim - start + region.columns]
        codes = codes >> np.uint8(region.first_bit) & np.uint8((1 << region.bits) - 1)
        codes = codes if region.in_column_order else codes[..., region.order]
        planes.append(_together(codes, packing, high_first) if region.bits == 4 else pack_bits(codes, region.bits))
    return planes[0] if len(planes) == 1 else np.concatenate(planes, axis=-1)


def _in_order(segment: Segment) -> list[Region]:
    return sorted(segment.codes, key=lambda region: (region.first_dim, region.first_bit))


def _together(codes: Bytes, packing: Packing, high_first: bool) -> Bytes:
    half = codes.shape[2] // 2
    halves = packing.startswith("halves")
    first, second = (codes[..., :half], codes[..., half:]) if halves else (codes[..., 0::2], codes[..., 1::2])
    low, high = (second, first) if packing.endswith("high first") != high_first else (first, second)
    if packing == "saturated":
        saturated: Bytes = low | np.minimum(high.astype(np.int64) << 4, 127).astype(np.uint8)
        return saturated
    together: Bytes = low | (high << np.uint8(4))
    return together


def unpacked(segment: Segment, found: Bytes, bits: int, packing: Packing, *, high_first: bool = False) -> Bytes:
    """`packed` undone: the codes (tokens, heads, dims) of bytes."""
    if bits >= 8:
        return found
    start, byte = segment.dims.start, 0
    codes = np.zeros((*found.shape[:2], len(segment.dims)), np.uint8)
    for region in _in_order(segment):
        width = region.columns * region.bits // 8
        plane = found[..., byte : byte + width]
        apart = _apart(plane, packing, high_first) if region.bits == 4 else unpack_bits(plane, region.bits)
        codes[..., region.first_dim - start + region.order] |= apart << np.uint8(region.first_bit)
        byte += width
    return codes


def _apart(found: Bytes, packing: Packing, high_first: bool) -> Bytes:
    low, high = found & 15, found >> 4
    first, second = (high, low) if packing.endswith("high first") != high_first else (low, high)
    if packing.startswith("halves"):
        return np.concatenate([first, second], axis=-1)
    return np.stack([first, second], axis=-1).reshape(*found.shape[:-1], -1)


def sides_of(dump: Dump) -> tuple[Any, ...]:
    """The sides that its pages hold."""
    return tuple(side for side in SIDES if side in dump.layout.sides)
