"""A page as a whole: its sizes, its regions, where an entry lies (`locate`) and what a byte holds (`explain`)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

import numpy as np

from kvformat.errors import InputError, unknown_name
from kvformat.layouts.region import PARTS, SIDES, Region, Side

Order = Literal["NHD", "HND"]
Nibbles = Literal["low_first", "high_first"]


@dataclass(frozen=True)
class Location:
    """Where an entry lies: it starts at `bit` (0 = least significant) of page byte `byte` and is `bits` wide.

    Entries wider than a byte are little-endian.
    """

    byte: int
    bit: int
    bits: int


@dataclass(frozen=True)
class Explanation:
    """What a byte of a page holds; the range `dims` is what its code stands for, or what its scale is shared by.

    Padding belongs to no side, slot or head (None) and to no dims (an empty range).
    """

    side: Side | None
    #: "code", "scale", the name of a further parameter, or "padding"
    part: str
    slot: int | None
    head: int | None
    dims: range
    region: str


PADDING = Explanation(None, "padding", None, None, range(0), "padding")


@dataclass(frozen=True)
class Segment:
    """The dims of a side's heads that one recipe covers, with the regions that hold their codes and scales."""

    side: Side
    #: the recipe of these dims alone; "": that of the page
    recipe: str
    #: in the order of their dims
    codes: tuple[Region, ...]
    #: none where no scale of these dims lies in the page
    scales: tuple[Region, ...]
    #: of the further parameters of these dims, in the order of the page
    more: tuple[Region, ...] = ()

    @property
    def dims(self) -> range:
        """The dims that it covers."""
        return range(self.codes[0].first_dim, self.codes[-1].all_dims.stop)

    @property
    def name(self) -> str:
        """The side, or the region's name where a recipe of its own covers it."""
        return self.codes[0].name if self.recipe else self.side.upper()


@dataclass(frozen=True)
class Layout:
    """Where the codes and scales of one layer's cache block lie: made by `layout`, equal and hashed by value."""

    name: str
    mode: str
    order: Order
    #: slots in a page
    block_size: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    #: how the V scales lie, None where the layout has no choice
    v_scales: str | None
    #: of the stored values, mode none only
    dtype: str | None
    #: bytes from one page to the next; what lies above natural_bytes is padding
    page_bytes: int
    natural_bytes: int
    #: in the order of their offsets
    regions: tuple[Region, ...]
    #: the recipe this layout's engine uses in this mode
    recipe: str
    #: "high_first": of the two 4-bit codes in a byte the even dim's is the high one; None: the low one
    nibbles: Nibbles | None = None
    #: the engine's tensors in which a page lies, and the bytes of it in each, in the order of the page
    tensors: tuple[tuple[str, int], ...] = ()

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides that the page stores: no V where attention is latent."""
        return tuple(side for side in SIDES if any(region.side == side for region in self.regions))

    def segments(self, side: Side) -> tuple[Segment, ...]:
        """A side's rows by recipe, in the order of the dims: more than one where the format changes along a head."""
        return self._segments[side]

    @cached_property
    def _segments(self) -> dict[Side, tuple[Segment, ...]]:
        return {side: self._segments_of(side) for side in SIDES}

    def _segments_of(self, side: Side) -> tuple[Segment, ...]:
        held = [region for region in self.regions if region.side == side]
        codes = [region for region in held if region.part == "code"]
        found = []
        for recipe, run in groupby(
            sorted(codes, key=lambda code: (code.first_dim, code.first_bit)), key=lambda code: code.recipe
        ):
            covered = tuple(run)
            inside = range(covered[0].first_dim, covered[-1].all_dims.stop)
            params = [each for each in held if each.part != "code" and each.first_dim in inside]
            scales = tuple(each for each in params if each.part == "scale")
            found.append(Segment(side, recipe, covered, scales, tuple(each for each in params if each not in scales)))
        return tuple(found)

    @property
    def parts(self) -> tuple[str, ...]:
        """What the page holds: "code", "scale", and the names of further parameters."""
        return tuple(dict.fromkeys((*PARTS, *(region.part for region in self.regions))))

    @property
    def uniform(self) -> bool:
        """Whether the page stores K and V, each in one format from its first dim to its last."""
        return self.sides == SIDES and all(
            len(self.segments(side)) == 1 and not self.segments(side)[0].recipe for side in SIDES
        )

    @property
    def spec(self) -> dict[str, str | int]:
        """The arguments of `layout` that make this layout again, those that do not apply left out."""
        names = ("name", "mode", "order", "block_size", "num_kv_heads", "head_size", "head_size_v")
        given = {name: getattr(self, name) for name in (*names, "v_scales", "dtype", "nibbles", "page_bytes")}
        return {name: value for name, value in given.items() if value is not None}

    def region(self, *, side: str, part: str = "code", dim: int = 0, bit: int = 0) -> Region:
        """The region that holds that part of `dim`, of a code its `bit`.

        Raises InputError, naming what the page has, where none does.
        """
        if side not in SIDES:
            raise unknown_name("side", side, SIDES)
        if part not in self.parts:
            raise unknown_name("part", part, self.parts)
        size = self.head_size if side == "k" else self.head_size_v
        dim = checked_index("dim", dim, size) if size else 0
        for region in self.regions:
            held_bits = range(region.first_bit, region.first_bit + region.bits)
            if (region.side, region.part) == (side, part) and dim in region.all_dims and bit in held_bits:
                return region
        held = ", ".join(region.name for region in self.regions)
        raise InputError(f"a {self.name} page in mode {self.mode} has no {side} {part} of dim {dim}; it has {held}")

    def locate(self, *, side: str, slot: int, head: int, dim: int, part: str = "code", bit: int = 0) -> Location:
        """Where the code of `dim`, or the scale it shares, lies in the page.

        side: "k" or "v"; slot: 0 .. block_size-1; head: 0 .. num_kv_heads-1; dim: 0 .. head_size-1 of that side.
        part: "code", "scale", or a further parameter by its name. bit: of a code whose bits lie in several places, the
        one that is sought; the location is that of the piece that begins with it or holds it. Raises InputError, naming
        the range, for what is out of it.
        """
        region = self.region(side=side, part=part, dim=dim, bit=checked_index("bit", bit, 64))
        slot = checked_index("slot", slot, self.block_size)
        head = checked_index("head", head, self.num_kv_heads)
        column = (operator.index(dim) - region.first_dim) // region.dims_per_entry
        byte, bit = divmod(region.address(slot, head, column), 8)
        return Location(byte, bit, region.bits)

    def explain(self, *, byte: int, bit: int | None = None) -> Explanation:
        """What a byte of the page holds, or one bit of it (0 the lowest): `locate` inverted, on every bit.

        A byte that holds parts of several codes names the dims of all of them. Raises InputError for a byte outside
        0 .. page_bytes-1 and a bit outside 0 .. 7.
        """
        byte = checked_index("byte", byte, self.page_bytes)
        if bit is not None:
            place = byte * 8 + checked_index("bit", bit, 8)
            return next((each for each in map(self._holder(place), self.regions) if each is not None), PADDING)
        for region in self.regions:
            first, last = region.find(byte * 8), region.find(byte * 8 + 7)
            if first is not None and last is not None:
                slot, head = first[:2]
                bits = range(byte * 8, byte * 8 + 8) if region.bits < 8 else ()
                inside = {place[2] for place in (first, last, *map(region.find, bits)) if place is not None}
                low, *others = sorted(inside)  # the low nibble may hold the higher dim
                apart = others[0] - low if others else 1  # dim j may share its byte with dim j + 16
                dims = range(region.dims(low).start, region.dims(max(inside)).stop, apart)
                return Explanation(region.side, region.part, slot, head, dims, region.name)
        return PADDING

    @staticmethod
    def _holder(place: int) -> Callable[[Region], Explanation | None]:
        """What a region says of a bit of the page."""

        def held(region: Region) -> Explanation | None:
            found = region.find(place)
            if found is None:
                return None
            slot, head, column = found
            return Explanation(region.side, region.part, slot, head, region.dims(column), region.name)

        return held

    def describe(self) -> dict[str, object]:
        """The layout as plain data for tables and drawings: `spec`, recipe, sizes in bytes, and its regions."""
        return {
            **self.spec,
            "recipe": self.recipe,
            "natural_bytes": self.natural_bytes,
            "page_bytes": self.page_bytes,
            "tensors": dict(self.tensors),
            "regions": [region.describe() for region in self.regions],
        }


def as_integer(value: object) -> int | None:
    """`value` as an int, None for what is no integer: bool, float, str, ..."""
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def checked_index(what: str, value: object, count: int) -> int:
    """`value` as an int in 0 .. count-1. Raises InputError, naming the range, for anything else (bool, float, ...)."""
    index = as_integer(value)
    if index is None or not 0 <= index < count:
        raise InputError(f"{what} must be an integer in 0..{count - 1}; got {value!r}")
    return index
