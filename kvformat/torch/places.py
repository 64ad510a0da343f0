"""Where a region's bytes lie, as a kernel takes it: digits in bytes, a compile-time constant, and the widest store."""

# ruff: noqa: RET505 Triton compiles the branch that holds, up to its end

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import triton
import triton.language as tl

from kvformat.errors import InputError
from kvformat.layouts.region import Digits, Region


@dataclass(frozen=True)
class Digit:
    """A digit of a coordinate, as `kvformat.layouts.region` has it, but in bytes; the last one counts single steps."""

    size: int
    stride: int


@dataclass(frozen=True)
class Unit:
    """A number of bytes, and the unsigned integer that has them."""

    size: int
    dtype: Any


UNITS = {size: Unit(size, dtype) for size, dtype in ((1, tl.uint8), (2, tl.uint16), (4, tl.uint32), (8, tl.uint64))}


@dataclass(frozen=True)
class Place:
    """The rows of one region: each coordinate's digits, sizes in counts and strides in bytes."""

    offset: int
    #: bytes from one page to the next
    page: int
    slot: tuple[Digit, ...]
    head: tuple[Digit, ...]
    #: digits of a byte within the row, and the bytes there are
    byte: tuple[Digit, ...]
    row_bytes: int
    #: of an entry, a byte for those of 4 bits
    entry: Unit
    #: the largest power of two, at most 16, that divides every address, offset and stride
    width: int
    #: what one store instruction is given: `entry`, 1 where that is not aligned, or several scales in one word
    word: Unit
    #: what one element of a load is: an entry, or a byte where entries are not aligned
    piece: Unit


def place(region: Region, page_bytes: int, base: int = 0) -> Place:
    """A region of pages that are `page_bytes` apart, the first one at address `base`.

    Raises InputError for entries that are not whole bytes or nibbles, low bits first.
    """
    entry = max(region.bits, 8) // 8
    if region.high_first or region.copies != 1:
        raise InputError(
            f"{region.name}: kernels store the even dim in the low nibble and a scale once; use CPU tensors"
        )
    if region.bits not in (4, 8, 16, 32):
        raise InputError(f"{region.name}: kernels store entries of 4, 8, 16 or 32 bits; these have {region.bits}")
    return _place(
        base=base,
        offset=region.offset,
        page=page_bytes,
        slot=_in_bytes(region, region.slot),
        head=_in_bytes(region, region.head),
        byte=_row_digits(region),
        row_bytes=region.row_bytes,
        entry=entry,
        scales=region.part == "scale",
    )


def dense(heads: int, row_bytes: int, entry: int) -> Place:
    """Rows one behind the other: (tokens, heads, row_bytes), a token being a page of one slot."""
    return _place(
        base=0,
        offset=0,
        page=heads * row_bytes,
        slot=(Digit(1, 0),),
        head=(Digit(heads, row_bytes),),
        byte=(Digit(row_bytes, 1),),
        row_bytes=row_bytes,
        entry=entry,
        scales=False,
    )


def _place(
    *, base: int, offset: int, page: int, slot: tuple[Digit, ...], head: tuple[Digit, ...], byte: tuple[Digit, ...],
    row_bytes: int, entry: int, scales: bool,
) -> Place:  # fmt: skip
    strides = [digit.stride for digits in (slot, head, byte[:-1]) for digit in digits if digit.size > 1]
    run = byte[-1].size
    width = gcd(16, base, offset, page, run, *strides)
    word = entry if width % entry == 0 else 1
    if scales and width > entry:
        word = min(width, 8)  # a scale alone is narrower than a store can be
    piece = min(word, entry)
    return Place(offset, page, slot, head, byte, row_bytes, UNITS[entry], width, UNITS[word], UNITS[piece])


def _in_bytes(region: Region, digits: Digits) -> tuple[Digit, ...]:
    if any(stride % 8 for _, stride in digits):
        raise InputError(f"{region.name}: kernels need rows that begin at whole bytes")
    return tuple(Digit(size, stride // 8) for size, stride in digits)


def _row_digits(region: Region) -> tuple[Digit, ...]:
    """The digits of a row's byte: those of its columns, the last ones that are contiguous joined to a run of bytes."""
    size, stride = region.column[-1]
    if stride != region.bits and region.bits >= 8:  # spread, as swizzled scales are: an entry is a run of its own
        return (*_in_bytes(region, region.column), Digit(region.bits // 8, 1))
    if stride != region.bits or size * region.bits % 8:
        raise InputError(f"{region.name}: {size} entries of {region.bits} bits do not fill bytes, low bits first")
    return (*_in_bytes(region, region.column[:-1]), Digit(size * region.bits // 8, 1))


@triton.jit
def _address(page: tl.tensor, slot: tl.tensor, head: tl.tensor, PLACE: tl.constexpr, UNIT: tl.constexpr) -> tl.tensor:
    """Where rows begin, counted in units of UNIT bytes, int64: (rows, 1)."""
    SLOT: tl.constexpr = PLACE.slot
    HEAD: tl.constexpr = PLACE.head
    row = PLACE.offset // UNIT + page * (PLACE.page // UNIT)
    at = _spread(slot.to(tl.int64), SLOT, len(SLOT), UNIT) + _spread(head.to(tl.int64), HEAD, len(HEAD), UNIT)
    return (row + at)[:, None]


@triton.jit
def _along(count: tl.constexpr, PLACE: tl.constexpr, UNIT: tl.constexpr) -> tl.tensor:
    """Where the units of a row lie from its beginning: (1, count)."""
    index = tl.arange(0, count)
    if len(PLACE.byte) == 1:
        return index[None, :]  # nothing else is known to be contiguous
    else:
        run: tl.constexpr = PLACE.byte[len(PLACE.byte) - 1].size // UNIT
        BYTE: tl.constexpr = PLACE.byte
        return (index % run + _spread(index // run, BYTE, len(BYTE) - 1, UNIT))[None, :]


@triton.jit
def _spread(index: tl.tensor, DIGITS: tl.constexpr, count: tl.constexpr, UNIT: tl.constexpr) -> tl.tensor:
    """Where an index lies by the first `count` of the digits, in units of UNIT bytes."""
    if count == 1:
        return index * (DIGITS[0].stride // UNIT)
    else:
        total = index % DIGITS[count - 1].size * (DIGITS[count - 1].stride // UNIT)
        rest = index // DIGITS[count - 1].size
        for i in tl.static_range(1, count - 1):
            total += rest % DIGITS[count - 1 - i].size * (DIGITS[count - 1 - i].stride // UNIT)
            rest = rest // DIGITS[count - 1 - i].size
        return total + rest * (DIGITS[0].stride // UNIT)


@triton.jit
def store_entries(
    base: tl.tensor,
    page: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    entries: tl.tensor,
    mask: tl.tensor,
    PLACE: tl.constexpr,
) -> None:
    """Store each row's entries, unsigned integers (rows, columns), in the rows' pages, slots and heads.

    base: the first byte of the pages. Rows where `mask` does not hold, and columns beyond the row, are not stored.
    """
    WORD: tl.constexpr = PLACE.word
    words = _words(entries, PLACE.entry.size, WORD)
    where = base.to(tl.pointer_type(PLACE.word.dtype), bitcast=True) + (
        _address(page, slot, head, PLACE, PLACE.word.size) + _along(words.shape[1], PLACE, PLACE.word.size)
    )
    kept = mask[:, None]
    if words.shape[1] * PLACE.word.size > PLACE.row_bytes:
        kept = kept & (tl.arange(0, words.shape[1]) < PLACE.row_bytes // PLACE.word.size)[None, :]
    tl.store(where, words, mask=kept)


@triton.jit
def load_entries(
    base: tl.tensor,
    page: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    COLUMNS: tl.constexpr,
    mask: tl.tensor,
    PLACE: tl.constexpr,
) -> tl.tensor:
    """The entries that `store_entries` stores: (rows, COLUMNS) unsigned integers, 0 where there is none."""
    pieces: tl.constexpr = PLACE.entry.size // PLACE.piece.size
    count: tl.constexpr = COLUMNS * pieces
    where = base.to(tl.pointer_type(PLACE.piece.dtype), bitcast=True) + (
        _address(page, slot, head, PLACE, PLACE.piece.size) + _along(count, PLACE, PLACE.piece.size)
    )
    kept = mask[:, None]
    if count * PLACE.piece.size > PLACE.row_bytes:
        kept = kept & (tl.arange(0, count) < PLACE.row_bytes // PLACE.piece.size)[None, :]
    found = tl.load(where, mask=kept, other=0)
    if pieces == 1:
        return found
    else:
        shift = (tl.arange(0, pieces) * (8 * PLACE.piece.size)).to(tl.uint32)
        wide = tl.reshape(found, (found.shape[0], COLUMNS, pieces)).to(tl.uint32) << shift[None, None, :]
        return tl.sum(wide, axis=2).to(PLACE.entry.dtype)


@triton.jit
def _words(entries: tl.tensor, ENTRY: tl.constexpr, WORD: tl.constexpr) -> tl.tensor:
    """Entries of ENTRY bytes in words of that unit, little-endian."""
    rows: tl.constexpr = entries.shape[0]
    columns: tl.constexpr = entries.shape[1]
    if WORD.size == ENTRY:
        return entries
    elif WORD.size > ENTRY:
        count: tl.constexpr = WORD.size // ENTRY
        shift = (tl.arange(0, count) * (8 * ENTRY)).to(tl.uint64)
        wide = tl.reshape(entries, (rows, columns // count, count)).to(tl.uint64) << shift[None, None, :]
        return tl.sum(wide, axis=2).to(WORD.dtype)
    else:
        parts: tl.constexpr = ENTRY // WORD.size
        shift = (tl.arange(0, parts) * (8 * WORD.size)).to(tl.uint32)
        pieces = entries.to(tl.uint32)[:, :, None] >> shift[None, None, :]
        return tl.reshape(pieces, (rows, columns * parts)).to(WORD.dtype)
