"""One kind of entry in a page, addressed in mixed-radix digits: where each entry lies, and rows in and out in bulk.

Each coordinate of a region (slot, head, column) is written in digits of its own, and each digit has a size and a
stride in bits, as in a CuTe layout. Token order, padding, nibbles and swizzles differ in these numbers alone: nothing
here branches on a name. A region's digits nest, so an address has at most one decomposition, and division finds it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.elements.packing import pack_bits, unpack_bits
from kvformat.errors import InputError

Side = Literal["k", "v"]
#: "code", "scale" (the first parameter of a group), or the name of a further parameter, as "m" or "zp"
PartName = str
Bytes = NDArray[np.uint8]
Index = TypeVar("Index", int, NDArray[np.int64])

SIDES: tuple[Side, ...] = ("k", "v")
PARTS: tuple[PartName, ...] = ("code", "scale")


class Digit(NamedTuple):
    """One digit of a coordinate: it runs over 0 .. size-1, and each step moves the address by `stride` bits."""

    size: int
    stride: int


Digits = tuple[Digit, ...]


class _Step(NamedTuple):
    """A digit as `Region.find` divides by it: which axis it belongs to, and what one step of it counts there."""

    stride: int
    size: int
    axis: int
    weight: int


class _Row(NamedTuple):
    """The bytes of a row: their digits, and the column at each place of them; None: in order."""

    axes: Digits
    order: NDArray[np.intp] | None


@dataclass(frozen=True)
class Region:
    """All entries of one kind in a page, such as the K codes: (slots, heads, columns) entries of `bits` bits.

    `slot`, `head` and `column` hold each coordinate's digits, most significant first. Those of slot and column may
    count further than the coordinate does, as tiles are padded: what lies there is padding. Raises InputError if the
    digits do not nest, or if a row's entries do not fill whole bytes, low bits first.
    """

    name: str
    side: Side
    part: PartName
    #: width of an entry
    bits: int
    #: byte of the page where entry (0, 0, 0) starts
    offset: int
    slots: int
    heads: int
    columns: int
    slot: Digits
    head: Digits
    column: Digits
    #: consecutive dims that one entry stands for, and the dim where column 0 begins
    dims_per_entry: int = 1
    first_dim: int = 0
    #: dtype of values that are stored as they are; "" for codes and scales
    dtype: str = ""
    #: the recipe of these entries where it is not that of the page
    recipe: str = ""
    #: an entry is its byte, so many times
    copies: int = 1
    #: of the two codes in a byte, the one with the even dim takes the high nibble
    high_first: bool = False
    #: the lowest bit of the codes that lies here, where their bits are kept apart: 4 for a plane of fifth bits
    first_bit: int = 0

    def __post_init__(self) -> None:
        extent = self.bits
        for step in reversed(self._steps):
            if step.stride < extent:
                raise InputError(f"{self.name}: a stride of {step.stride} bits overlaps the {extent} bits below it")
            extent += step.stride * (step.size - 1)
        for axis, count, digits in zip(("slot", "head", "column"), self._counts, self._digits, strict=True):
            reach = prod(digit.size for digit in digits)
            if reach < count or (axis == "head" and reach > count):
                raise InputError(f"{self.name}: the digits of {axis} count to {reach}, not {count}")
        if self.high_first and self.bits != 4:
            raise InputError(f"{self.name}: entries of {self.bits} bits have no order of nibbles")
        _ = self._row  # raises where a row does not fill bytes

    @property
    def _counts(self) -> tuple[int, int, int]:
        return self.slots, self.heads, self.columns

    @property
    def _digits(self) -> tuple[Digits, Digits, Digits]:
        return self.slot, self.head, self.column

    @property
    def row_bytes(self) -> int:
        """Bytes of one (slot, head) row: columns x bits / 8."""
        return self.columns * self.bits // 8

    @property
    def num_bytes(self) -> int:
        """Bytes the region's entries occupy in a page, gaps not counted."""
        return self.slots * self.heads * self.row_bytes

    @cached_property
    def end(self) -> int:
        """The page byte after the last one the digits reach."""
        reach = self.bits + sum(digit.stride * (digit.size - 1) for axis in self._digits for digit in axis)
        return self.offset + -(-reach // 8)

    @property
    def all_dims(self) -> range:
        """The dims that the entries of a row stand for."""
        return range(self.first_dim, self.first_dim + self.columns * self.dims_per_entry)

    def dims(self, column: int) -> range:
        """The dims that entry `column` of a row stands for."""
        start = self.first_dim + column * self.dims_per_entry
        return range(start, start + self.dims_per_entry)

    def address(self, slot: Index, head: Index, column: Index) -> Index:
        """The bit of the page where an entry starts, of ints or int64 arrays that broadcast. Ranges are not checked."""
        bit = self.offset * 8 + _spread(slot, self.slot) + _spread(head, self.head) + _spread(column, self.column)
        return bit ^ 4 if self.high_first else bit

    def find(self, bit: int) -> tuple[int, int, int] | None:
        """The (slot, head, column) whose entry holds that bit of the page, None where none does: `address` inverted."""
        rest = (bit ^ 4 if self.high_first else bit) - self.offset * 8
        if rest < 0:
            return None
        coordinates = [0, 0, 0]
        for stride, size, axis, weight in self._steps:
            digit, rest = divmod(rest, stride)
            if digit >= size:
                return None
            coordinates[axis] += digit * weight
        inside = rest < self.bits and all(map(operator.lt, coordinates, self._counts))
        return (coordinates[0], coordinates[1], coordinates[2]) if inside else None

    def view(self, pages: Bytes) -> Bytes:
        """The region's bytes in `pages`, uint8 (num_blocks, page_bytes), without a copy.

        Shape (num_blocks, *slot digits, *head digits, *byte digits of a row), each coordinate's most significant
        first; writable where the pages are. Raises InputError if `pages` is not such an array or too short.
        """
        if pages.dtype != np.uint8 or pages.ndim != 2:
            raise InputError(f"pages must be uint8 (num_blocks, page_bytes); got {pages.dtype} {pages.shape}")
        if pages.shape[1] < self.end:
            raise InputError(f"{self.name} needs pages of at least {self.end} bytes; these have {pages.shape[1]}")
        axes = (*self.slot, *self.head, *self._row.axes)
        block_stride, byte_stride = pages.strides
        return np.lib.stride_tricks.as_strided(
            pages[:, self.offset :],
            shape=(pages.shape[0], *(axis.size for axis in axes)),
            strides=(block_stride, *(axis.stride // 8 * byte_stride for axis in axes)),
            writeable=pages.flags.writeable,
        )

    def read(self, pages: Bytes, block: ArrayLike, slot: ArrayLike) -> Bytes:
        """The rows of n tokens, a copy: uint8 (n, heads, row_bytes), entries in column order, low nibble first.

        block, slot: integers (n,), the page and the slot in it. Raises InputError for pages or indices out of range.
        """
        view = _in_words(self.view(pages))
        index = self._index(pages, block, slot)
        rows = np.ascontiguousarray(view[index]).view(np.uint8)
        rows = rows.reshape(len(index[0]), self.heads, self._padded_row_bytes)
        kept = rows[..., : self.row_bytes]
        kept = _swapped(kept) if self.high_first else np.ascontiguousarray(kept)
        if self._row.order is None:
            return kept
        codes = np.empty((*kept.shape[:2], self.columns), np.uint8)
        codes[..., self._row.order] = unpack_bits(kept, self.bits, self.columns)
        return pack_bits(codes, self.bits)

    def write(self, pages: Bytes, block: ArrayLike, slot: ArrayLike, rows: Bytes) -> None:
        """Store the rows of n tokens, uint8 (n, heads, row_bytes), in place: what `read` returns.

        Of a (block, slot) that is named twice the last row stays. Raises InputError as `read` does, for rows of another
        shape or dtype, and for read-only pages.
        """
        view = self.view(pages)
        index = self._index(pages, block, slot)
        shape = (len(index[0]), self.heads, self.row_bytes)
        if rows.dtype != np.uint8 or rows.shape != shape:
            raise InputError(f"{self.name} rows must be uint8 {shape}; got {rows.dtype} {rows.shape}")
        if not pages.flags.writeable:
            raise InputError("pages are read-only; write to a copy")
        if self._row.order is not None:
            rows = pack_bits(unpack_bits(rows, self.bits, self.columns)[..., self._row.order], self.bits)
        if self.high_first:
            rows = _swapped(rows)
        if self.row_bytes < self._padded_row_bytes:  # a padded tile row: its padding keeps its bytes
            padding = view[index].reshape(*shape[:2], self._padded_row_bytes)[..., self.row_bytes :]
            rows = np.concatenate([rows, padding], axis=-1)
        words = _in_words(view)
        rows = np.ascontiguousarray(rows).reshape(shape[0], *view.shape[1 + len(self.slot) :])
        words[index] = rows.view(words.dtype)

    @property
    def in_column_order(self) -> bool:
        """Whether the entries of a row lie in its bytes in the order of their columns."""
        return self._row.order is None

    @property
    def order(self) -> NDArray[np.int64]:
        """The columns of a row in the order in which they lie in its bytes: (columns,)."""
        return np.arange(self.columns, dtype=np.int64) if self._row.order is None else self._row.order

    def row_bytes_of(self, slot: NDArray[np.int64]) -> NDArray[np.int64]:
        """The page bytes of the rows of n slots, (n, heads, row bytes), in the order in which they lie."""
        # the fewest columns that fill whole bytes: 2 of 4 bits, 4 of 6, 1 of 8 or 32
        shared = gcd(self.bits, 8)
        first = self.address(slot[:, None, None], np.arange(self.heads)[:, None], self.order[:: 8 // shared]) // 8
        rows: NDArray[np.int64] = (first[..., None] + np.arange(self.bits // shared)).reshape(*first.shape[:2], -1)
        return rows

    def describe(self) -> dict[str, object]:
        """The region as plain data: sizes and strides in bytes, `digits` in (size, stride in bits).

        A coordinate of several digits has no one stride: None. `first_bit` is there where codes lie in bit planes.
        """
        return {
            "name": self.name,
            "side": self.side,
            "part": self.part,
            "offset": self.offset,
            "bytes": self.num_bytes,
            "bits_per_entry": self.bits,
            "columns": self.columns,
            "dims_per_entry": self.dims_per_entry,
            "first_dim": self.first_dim,
            **({"first_bit": self.first_bit} if self.first_bit else {}),
            "dtype": self.dtype or None,
            "recipe": self.recipe or None,
            "slot_stride": self.slot[0].stride // 8 if len(self.slot) == 1 else None,
            "head_stride": self.head[0].stride // 8 if len(self.head) == 1 else None,
            "digits": {"slot": self.slot, "head": self.head, "column": self.column},
        }

    @cached_property
    def _steps(self) -> tuple[_Step, ...]:
        """Every digit that moves, the longest stride first: dividing in this order takes an address apart."""
        steps = []
        for axis, digits in enumerate(self._digits):
            weight = 1
            for size, stride in reversed(digits):
                if size > 1:
                    steps.append(_Step(stride, size, axis, weight))
                weight *= size
        return tuple(sorted(steps, reverse=True))

    @cached_property
    def _row(self) -> _Row:
        """How a row lies in bytes: its columns in order where those fill bytes, else in the order of their addresses.

        Where dim j shares a byte with dim j + 16, the bytes of a row hold dims 0, 16, 1, 17, ...
        """
        axes = self._row_axes(self.column)
        if axes is not None:
            return _Row(axes, None)
        if self.bits < 8 and prod(digit.size for digit in self.column) == self.columns:
            axes = self._row_axes(tuple(sorted(self.column, key=lambda digit: -digit.stride)))
        if axes is None:
            raise InputError(f"{self.name}: entries of {self.bits} bits do not fill whole bytes, low bits first")
        return _Row(axes, np.argsort(_spread(np.arange(self.columns), self.column)))

    def _row_axes(self, column: Digits) -> Digits | None:
        """The column digits down to bytes, neighbours that are contiguous joined into one; None if no bytes fill.

        Down to single bits first, then the last eight of those are a byte: 64 dims of 4 bits are 256 bits, 32 bytes.
        """
        axes = [Digit(self.bits, 1)]
        for size, stride in reversed(column):
            if stride == axes[0].size * axes[0].stride:
                axes[0] = Digit(size * axes[0].size, axes[0].stride)
            else:
                axes.insert(0, Digit(size, stride))
        run = axes.pop().size
        strides = [axis.stride for axis in (*self.slot, *self.head, *axes)]
        if run % 8 or any(stride % 8 for stride in strides):
            return None
        return (*axes, Digit(run // 8, 8))

    @property
    def _padded_row_bytes(self) -> int:
        return prod(axis.size for axis in self._row.axes)

    def _index(self, pages: Bytes, block: ArrayLike, slot: ArrayLike) -> tuple[NDArray[np.int64], ...]:
        """The advanced index of n tokens into `view`: the block, then each slot digit, all (n,)."""
        blocks = _positions("block", block, pages.shape[0])
        rest = _positions("slot", slot, self.slots)
        if blocks.shape != rest.shape:
            raise InputError(f"block and slot must have the same length; got {len(blocks)} and {len(rest)}")
        digits = []
        for size, _ in reversed(self.slot):
            rest, digit = np.divmod(rest, size)
            digits.append(digit)
        return (blocks, *reversed(digits))


def _spread(index: Index, digits: Digits) -> Index:
    """The bits that a coordinate adds to an address."""
    total = index * 0
    for size, stride in reversed(digits[1:]):
        total = total + index % size * stride
        index = index // size
    return total + index * digits[0].stride


def _swapped(rows: Bytes) -> Bytes:
    """The two nibbles of each byte the other way round."""
    swapped: Bytes = rows << np.uint8(4) | rows >> np.uint8(4)
    return swapped


def _in_words(view: Bytes) -> NDArray[Any]:
    """The same memory, its last axis in words of up to 8 bytes.

    Gathering 524,288 rows of 8 bytes takes 13 ms by bytes, 3.5 ms by words; 4-byte rows 21 and 9 ms.
    """
    word = gcd(view.shape[-1], 8) if view.strides[-1] == 1 else 1
    return view.view(f"u{word}")


def _positions(what: str, values: ArrayLike, count: int) -> NDArray[np.int64]:
    """Indices as int64 (n,), all in 0 .. count-1. Raises InputError for others."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InputError(f"{what} must be integers of shape (n,); got {array.dtype} {array.shape}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < count:
        bad = array.min() if array.min() < 0 else array.max()
        raise InputError(f"{what} must be in 0..{count - 1}; got {bad}")
    return array.astype(np.int64)
