"""Two 4-bit codes in one byte: element 2i in the low nibble, 2i + 1 in the high one."""

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
