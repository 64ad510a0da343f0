"""Where a writer puts its rows: the byte addresses of a layout, and how a faulty writer departs from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.layouts import Layout, Region
from kvformat.layouts.build import layout as lay_out
from kvformat.layouts.catalogue import find_entry
from kvformat.layouts.entry import Entry, Form, Section
from kvformat.layouts.region import Side
from kvformat.layouts.swizzle import SWIZZLES, Term

Addresses = NDArray[np.int64]
Part = tuple[Side, str]
#: how two 4-bit codes share a byte
Packing = Literal["low first", "high first", "halves", "halves, high first", "saturated"]

SIDES: tuple[Side, ...] = ("k", "v")
_OTHER = {"NHD": "HND", "HND": "NHD"}


@dataclass(frozen=True)
class Frame:
    """What an address depends on besides the layout: the slots of the tokens (none negative), the pages there are."""

    layout: Layout
    slots: NDArray[np.int64]
    num_blocks: int


@dataclass(frozen=True)
class Places:
    """Where each byte of each (token, head) row lies: flat indices into all pages, outside of them allowed."""

    #: (tokens, heads, row bytes) by side and part; a part that is not written has none
    at: Mapping[Part, Addresses]
    packing: Packing = "low first"
    #: the scales were never written: each of their bytes is one and the same
    blank_scales: bool = False
    #: K and V lie in each other's place or among each other, so one side alone cannot have the fault
    coupled: bool = False
    #: rows may lie over each other: which one stays depends on who comes last
    overlapping: bool = False

    def same_as(self, other: Places, side: Side) -> bool:
        """Whether a side lies in the same bytes, in the same way."""
        if (self.packing, self.blank_scales) != (other.packing, other.blank_scales):
            return False
        mine, theirs = ({part: at for (of, part), at in each.at.items() if of == side} for each in (self, other))
        return mine.keys() == theirs.keys() and all(np.array_equal(mine[part], theirs[part]) for part in mine)


class Remap(Protocol):
    """A departure from a layout."""

    def places(self, frame: Frame) -> Places | None:
        """The addresses of a writer that departs so; None where the layout leaves no room for it."""
        ...


def right_places(frame: Frame) -> Places:
    """The addresses that the layout says."""
    return laid(frame.layout, frame)


def laid(layout: Layout, frame: Frame, **more: Any) -> Places:
    """The addresses of a layout, which may be another one than the frame's; its page stride is the frame's."""
    return Places(_at(layout, frame, layout.block_size), **more)


def _at(layout: Layout, frame: Frame, block_size: int) -> dict[Part, Addresses]:
    block, slot = np.divmod(frame.slots, block_size)
    base = (block * frame.layout.page_bytes)[:, None, None]
    at: dict[Part, Addresses] = {}
    for region in sorted(layout.regions, key=lambda each: (each.first_dim, each.first_bit)):
        rows = region.row_bytes_of(slot) + base
        before = at.get((region.side, region.part))
        at[region.side, region.part] = rows if before is None else np.concatenate([before, rows], axis=2)
    return at


def _entry(layout: Layout) -> tuple[Entry, Form]:
    entry = find_entry(layout.name)
    return entry, entry.form(layout.mode)


def _relaid(layout: Layout, sections: tuple[Section, ...] | None = None, **changes: Any) -> Layout | None:
    """The layout with other sections or other arguments, its page as long as the layout's; None where it cannot be."""
    entry, form = _entry(layout)
    spec = {**layout.spec, **changes}
    spec.pop("name")
    spec.pop("page_bytes")
    if sections is not None:
        form = replace(form, sections=sections, head_sizes="any")
        entry = replace(entry, modes=((layout.mode, form),))
    try:
        made = lay_out(entry, **spec)
    except InputError:
        return None
    if made.natural_bytes > layout.page_bytes or made.regions == layout.regions:
        return None
    return made


def in_mode_none(layout: Layout, dtype: str) -> Layout | None:
    """The layout of the same name and sizes that stores values of that dtype; None where it has no such mode."""
    spec: dict[str, Any] = {**layout.spec, "mode": "none", "dtype": dtype}
    for key in ("name", "page_bytes", "v_scales"):
        spec.pop(key, None)
    try:
        return lay_out(layout.name, **spec)
    except InputError:
        return None


@dataclass(frozen=True)
class OtherOrder:
    """Heads and slots are nested the other way round: NHD for HND."""

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        made = _relaid(frame.layout, order=_OTHER[frame.layout.order])
        return None if made is None else laid(made, frame)


@dataclass(frozen=True)
class Regrouped:
    """K and V, and their scales, repeat together over other axes: `per` of every section."""

    per: Literal["cell", "head", "slot", "page"]

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        sections = tuple(replace(each, per=self.per) for each in _entry(frame.layout)[1].sections)
        made = _relaid(frame.layout, sections)
        return None if made is None else laid(made, frame, coupled=True)


@dataclass(frozen=True)
class AlignedRecord:
    """Each record is padded to a multiple of so many bytes."""

    multiple: int

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        sections = tuple(replace(each, record_align=self.multiple) for each in _entry(frame.layout)[1].sections)
        made = _relaid(frame.layout, sections)
        return None if made is None else laid(made, frame)


@dataclass(frozen=True)
class KThenV:
    """All K pages come before all V pages, as in a [2, blocks, ...] tensor, and not page by page."""

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        layout = frame.layout
        sections = tuple(replace(each, per="page") for each in _entry(layout)[1].sections)
        if layout.sides != SIDES:
            return None
        halves = _relaid(layout, sections) or layout
        block, slot = np.divmod(frame.slots, layout.block_size)
        at: dict[Part, Addresses] = {}
        start = 0
        for side in SIDES:
            regions = [each for each in halves.regions if each.side == side]
            size = sum(each.num_bytes for each in regions)
            if any(each.end - each.offset != each.num_bytes for each in regions):
                return None
            inside = 0
            for region in regions:
                rows = region.row_bytes_of(slot) - region.offset + inside
                at[side, region.part] = rows + start + (block * size)[:, None, None]
                inside += region.num_bytes
            start += frame.num_blocks * size
        return Places(at, coupled=True)


@dataclass(frozen=True)
class Exchanged:
    """K lies where V belongs, and V where K does."""

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        at = right_places(frame).at
        if frame.layout.head_size != frame.layout.head_size_v:
            return None
        return Places({(_other(side), part): where for (side, part), where in at.items()}, coupled=True)


def _other(side: Side) -> Side:
    return "v" if side == "k" else "k"


@dataclass(frozen=True)
class Packed:
    """Two 4-bit codes share a byte in another way."""

    packing: Packing

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        if any(each.bits != 4 for each in frame.layout.regions if each.part == "code"):
            return None
        return replace(right_places(frame), packing=self.packing)


#: how the scales of a page lie: a swizzle by name, "twice" (4-token, applied again) or "" (as the layout says)
Swizzling = Literal["", "linear", "4-token", "twice", "128x4"]


@dataclass(frozen=True)
class Swizzled:
    """The block scales lie in another swizzle; 128x4 tiles the rows of all heads of the page together."""

    k: Swizzling = ""
    v: Swizzling = ""

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        layout = frame.layout
        choices = dict(_entry(layout)[1].v_scales)
        said = {"k": "linear", "v": choices.get(layout.v_scales or "", "linear")}
        linear = _relaid(layout, v_scales="linear") if said["v"] != "linear" else layout
        regions = {each.side: each for each in (linear or layout).regions if each.part == "scale" and each.bits == 8}
        wanted: dict[Side, Swizzling] = {"k": self.k, "v": self.v}
        at = dict(right_places(frame).at)
        changed = False
        for side, how in wanted.items():
            if not how or side not in regions or linear is None or how == said[side]:
                continue
            rows = _swizzled_rows(regions[side], how, frame)
            if rows is None:
                return None
            at[side, "scale"] = rows
            changed = True
        return Places(at) if changed else None


def _swizzled_rows(region: Region, how: Swizzling, frame: Frame) -> Addresses | None:
    layout = frame.layout
    block, slot = np.divmod(frame.slots, layout.block_size)
    t, head, s = slot[:, None, None], np.arange(region.heads)[:, None], np.arange(region.columns)
    base = (block * layout.page_bytes)[:, None, None]
    if how == "128x4":
        row = head * layout.block_size + t if layout.order == "HND" else t * region.heads + head
        rows = region.heads * layout.block_size
        if rows % 128 or region.columns % 4 or region.end - region.offset != region.num_bytes:
            return None
        plane = SWIZZLES["128x4"].plane(rows, region.columns)
        tiled: Addresses = base + region.offset + _entries(row, plane.row) + _entries(s, plane.column)
        return tiled
    times = {"linear": 0, "4-token": 1, "twice": 2}[how]
    if times and (region.columns % 4 or layout.block_size % 4):
        return None
    for _ in range(times):
        group = region.columns // 4
        t, s = t // 4 * 4 + s // group, s % group * 4 + t % 4
    found: Addresses = base + np.broadcast_to(
        region.address(t, head, s) // 8, (len(slot), region.heads, region.columns)
    )
    return found


def _entries(index: NDArray[np.int64], terms: tuple[Term, ...]) -> NDArray[np.int64]:
    total = np.zeros_like(index)
    for size, _, entries in reversed(terms[1:]):
        total += index % size * entries
        index = index // size
    return total + index * terms[0].entries


@dataclass(frozen=True)
class MovedSlots:
    """Tokens lie so many slots or blocks from where they belong."""

    slots: int = 0
    blocks: int = 0

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        moved = frame.slots + self.slots + self.blocks * frame.layout.block_size
        return laid(frame.layout, replace(frame, slots=moved))


@dataclass(frozen=True)
class OtherBlockSize:
    """A slot is taken apart with another block size: so many slots, 0 for as many as there are heads."""

    size: int

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        size = self.size or frame.layout.num_kv_heads
        if size == frame.layout.block_size:
            return None
        return Places(_at(frame.layout, frame, size), overlapping=True)


@dataclass(frozen=True)
class PageStride:
    """Blocks lie so far apart as `stride` says, not as the pages do.

    natural: as the shape says, the padding forgotten. half, double: of the page. A number: padded to a multiple of it.
    """

    stride: Literal["natural", "half", "double"] | int
    parts: tuple[Literal["code", "scale"], ...] = ("code", "scale")

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        layout = frame.layout
        own = layout.page_bytes
        lengths: Mapping[Any, int] = {"natural": layout.natural_bytes, "half": own // 2, "double": own * 2}
        stride = -(-own // self.stride) * self.stride if isinstance(self.stride, int) else lengths[self.stride]
        places = right_places(frame)
        held = {part for _, part in places.at}
        if stride == own or not held.intersection(self.parts):
            return None
        shift = (frame.slots // layout.block_size * (stride - own))[:, None, None]
        at = {key: where + shift if key[1] in self.parts else where for key, where in places.at.items()}
        return Places(at, overlapping=stride < own)


@dataclass(frozen=True)
class NoScales:
    """The page's scales were not written, or the page has no room for them."""

    room: bool

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        places = right_places(frame)
        if not any(part == "scale" for _, part in places.at):
            return None
        if self.room:
            return replace(places, blank_scales=True)
        sections = tuple(
            replace(each, record=kept)
            for each in _entry(frame.layout)[1].sections
            if (kept := tuple(part for part in each.record if part.kind == "code"))
        )
        made = _relaid(frame.layout, sections)
        return None if made is None else laid(made, frame)


@dataclass(frozen=True)
class OtherLayout:
    """The page of another layout of the catalogue."""

    name: str
    order: str
    v_scales: str = field(default="")

    def places(self, frame: Frame) -> Places | None:
        """See Remap."""
        made = self.layout(frame.layout)
        return None if made is None else laid(made, frame, coupled=True)

    def layout(self, declared: Layout) -> Layout | None:
        """The layout of that name in the declared one's sizes, None where it cannot have them."""
        spec: dict[str, Any] = {**declared.spec, "order": self.order, "v_scales": self.v_scales or None}
        for key in ("name", "page_bytes"):
            spec.pop(key)
        try:
            made = lay_out(self.name, **spec)
        except InputError:
            return None
        return made if made.natural_bytes <= declared.page_bytes and made.regions != declared.regions else None
