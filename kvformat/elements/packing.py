"""Codes of any width as bytes: a continuous stream, the first code in the lowest bits.

At 4 bits element 2i lies in the low nibble and 2i + 1 in the high one; at 3 bits code i begins at bit 3 i of the
stream, and may cross into the next byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.errors import InputError


def pack_nibbles(codes: ArrayLike) -> NDArray[np.uint8]:
    """Pack 4-bit codes (..., n) into bytes (..., n / 2), uint8, low nibble first.

    Takes the low four bits of each code, so int4's -8..7 and unsigned patterns 0..15 both pack.
    Raises InputError for a dtype other than int8 / uint8, an odd n, or a code of more than four bits.
    """
    array: NDArray[Any] = np.asarray(codes)
    if array.dtype not in (np.int8, np.uint8):
        raise InputError(f"codes to pack must be int8 or uint8, one code per byte; got {array.dtype}")
    if array.ndim == 0 or array.shape[-1] % 2:
        raise InputError(f"4-bit codes are packed in pairs along the last axis; got shape {array.shape}")
    low, high = (-8, 7) if array.dtype == np.int8 else (0, 15)
    if array.size and (int(array.min()) < low or int(array.max()) > high):
        raise InputError(f"4-bit codes of dtype {array.dtype} lie in {low}..{high}; got {array.min()}..{array.max()}")
    nibbles = array.astype(np.uint8) & np.uint8(0xF)  # int8 -1 is 0xFF, its low nibble 0xF
    packed: NDArray[np.uint8] = nibbles[..., 0::2] | (nibbles[..., 1::2] << np.uint8(4))
    return packed


def unpack_nibbles(packed: ArrayLike) -> NDArray[np.uint8]:
    """Unpack bytes (..., n) into 4-bit patterns (..., 2n), uint8 0..15. For int4's values see `decode`.

    Raises InputError for a dtype other than uint8.
    """
    array: NDArray[Any] = np.asarray(packed)
    if array.dtype != np.uint8:
        raise InputError(f"packed codes are bytes (uint8); got {array.dtype}")
    if array.ndim == 0:
        raise InputError("packed codes need at least one axis; got a scalar")
    codes = np.empty((*array.shape[:-1], 2 * array.shape[-1]), np.uint8)
    codes[..., 0::2] = array & 0xF
    codes[..., 1::2] = array >> 4
    return codes


def pack_bits(codes: ArrayLike, bits: int) -> NDArray[np.uint8]:
    """Pack codes of any width into bytes, LSB first.

    Parameters
    ----------
    codes: int8 or uint8, shape (..., n): one code per byte; of signed ones the low `bits` bits are taken.
    bits: the width of a code, 1 to 8.

    Returns
    -------
    uint8, shape (..., ceil(n * bits / 8)): code i in bits i * bits and up, counted from the lowest bit of the first
    byte; the bits after the last code are 0.

    Raises
    ------
    InputError: for another dtype, a width outside 1..8, or a code of more than `bits` bits.
    """
    array: NDArray[Any] = np.asarray(codes)
    _check_width(bits)
    if array.dtype not in (np.int8, np.uint8) or array.ndim == 0:
        raise InputError(f"codes to pack are int8 or uint8, at least one axis; got {array.dtype} {array.shape}")
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if array.dtype == np.int8 else (0, (1 << bits) - 1)
    if array.size and (int(array.min()) < low or int(array.max()) > high):
        got = f"{array.min()}..{array.max()}"
        raise InputError(f"{bits}-bit codes of dtype {array.dtype} lie in {low}..{high}; got {got}")
    patterns = np.ascontiguousarray(array).view(np.uint8) & np.uint8((1 << bits) - 1)
    if bits in (1, 2, 4, 8) and not array.shape[-1] * bits % 8:
        return _folded(patterns, bits)
    # eight codes fill `bits` bytes: they are put together in one 64-bit word
    count = array.shape[-1]
    groups = -(-count // 8)
    padded = np.zeros((*array.shape[:-1], 8 * groups), np.uint8)
    padded[..., :count] = patterns
    eights = padded.reshape(*array.shape[:-1], groups, 8)
    words = np.zeros(eights.shape[:-1], "<u8")
    for place in range(8):
        words |= eights[..., place].astype("<u8") << np.uint64(bits * place)
    whole = words.view(np.uint8).reshape(*words.shape, 8)[..., :bits]
    return np.ascontiguousarray(whole.reshape(*array.shape[:-1], groups * bits)[..., : -(-count * bits // 8)])


def unpack_bits(packed: ArrayLike, bits: int, count: int | None = None) -> NDArray[np.uint8]:
    """Unpack a stream of codes of any width: the inverse of `pack_bits`.

    Parameters
    ----------
    packed: uint8, shape (..., bytes).
    bits: the width of a code, 1 to 8.
    count: codes to take; None: as many whole ones as there are.

    Returns
    -------
    uint8 patterns, shape (..., count). For the values of signed ones see `decode`.

    Raises
    ------
    InputError: for another dtype, a width outside 1..8, or more codes than there are.
    """
    array: NDArray[Any] = np.asarray(packed)
    _check_width(bits)
    if array.dtype != np.uint8 or array.ndim == 0:
        raise InputError(f"packed codes are bytes (uint8), at least one axis; got {array.dtype} {array.shape}")
    held = 8 * array.shape[-1] // bits
    wanted = held if count is None else count
    if not 0 <= wanted <= held:
        raise InputError(f"{array.shape[-1]} bytes hold {held} codes of {bits} bits; got count {count}")
    if bits in (1, 2, 4, 8):
        return np.ascontiguousarray(_unfolded(array, bits)[..., :wanted])
    groups = -(-wanted // 8)
    eights = np.zeros((*array.shape[:-1], groups * bits), np.uint8)
    taken = min(groups * bits, array.shape[-1])
    eights[..., :taken] = array[..., :taken]
    bytes8 = np.zeros((*array.shape[:-1], groups, 8), np.uint8)
    bytes8[..., :bits] = eights.reshape(*array.shape[:-1], groups, bits)
    words = bytes8.view("<u8")[..., 0]
    codes = np.empty((*array.shape[:-1], groups, 8), np.uint8)
    for place in range(8):
        codes[..., place] = (words >> np.uint64(bits * place)) & np.uint64((1 << bits) - 1)
    return np.ascontiguousarray(codes.reshape(*array.shape[:-1], 8 * groups)[..., :wanted])


def _folded(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Codes of a width that divides 8, packed: each pair becomes a code twice as wide until bytes are full."""
    while bits < 8:
        pairs = codes.view("<u2")
        codes = (pairs | pairs >> np.uint16(8 - bits)).astype(np.uint8)  # the cast keeps the low byte
        bits *= 2
    return codes


def _unfolded(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """The codes of a width that divides 8, one per byte: the inverse of `_folded`."""
    packed, width = np.ascontiguousarray(packed), 8
    while width > bits:
        width //= 2
        halves = packed.astype("<u2")
        halves |= halves << np.uint16(8 - width)
        halves &= np.uint16(0x0101 * ((1 << width) - 1))
        packed = halves.view(np.uint8)
    return packed


def _check_width(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise InputError(f"a code has 1 to 8 bits; got {bits}")
