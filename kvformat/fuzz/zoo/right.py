"""Right quantizers written in other ways than the engine: nothing of the search may accuse them."""

from __future__ import annotations

import numpy as np

from kvformat.fuzz.zoo.blocks import Blocks
from kvformat.fuzz.zoo.entry import INT8, Described, Kernel, of_class
from kvformat.fuzz.zoo.numbers import E2M1, ONE, Array, from_e4m3
from kvformat.fuzz.zoo.readers import RIGHT as READERS
from kvformat.fuzz.zoo.rows import Rows
from kvformat.fuzz.zoo.writers import RIGHT as WRITERS

#: the finite magnitudes of e4m3 in order, by their codes 0x00..0x7E
_E4M3 = from_e4m3(np.arange(0x7F, dtype=np.uint8)).astype(np.float64)


def nearest(size: Array, table: Array) -> Array:
    """The place of the nearest entry of a table, ties to the even place; what is beyond the last one takes it."""
    above = np.minimum(np.searchsorted(table, size, side="left"), len(table) - 1)
    below = np.maximum(above - 1, 0)
    down, up = size - table[below], table[above] - size
    chosen = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    return np.where(size >= table[-1], len(table) - 1, chosen)


class TableRows(Rows):
    """Codes are looked up among the values themselves, in float64, by distance; NumPy, no casts."""

    def encode(self, q: Array) -> Array:
        wide, nan = np.abs(q.astype(np.float64)), np.isnan(q)
        if self.mode == INT8:
            whole = nearest(np.where(nan, 0, wide), np.arange(128.0)).astype(np.int16)
            return np.where(np.signbit(q) & ~nan, -whole, whole).astype(np.int8)
        codes = nearest(np.where(nan, 0, wide), _E4M3) | np.where(np.signbit(q), 0x80, 0)
        return np.where(nan, 0x7F, codes).astype(np.uint8)


class IntegerRows(Rows):
    """Codes by integer arithmetic on the bits of the quotient, as a kernel without 8-bit float instructions does it."""

    def encode(self, q: Array) -> Array:
        if self.mode == INT8:  # adding 1.5 * 2^23 leaves the rounded integer in the low bits
            limited = np.where(np.isnan(q), np.float32(0), np.clip(q, -127, 127))
            return ((limited + np.float32(12582912)).view(np.int32) - np.int32(0x4B400000)).astype(np.int8)
        bits = q.view(np.uint32)
        size = bits & np.uint32(0x7FFFFFFF)
        # 20 mantissa bits go; the exponent's bias falls from 127 to 7
        normal = (size + np.uint32(0x7FFFF) + (size >> 20 & 1) >> 20).astype(np.int64) - (120 << 3)
        tiny = np.rint(size.view(np.float32) * np.float32(512)).astype(np.int64)
        with np.errstate(invalid="ignore"):
            code = np.where(size < np.uint32(121 << 23), tiny, normal)
        code = np.minimum(code, 0x7E) | (bits >> 24 & 0x80).astype(np.int64)
        return np.where(size > np.uint32(0x7F800000), 0x7F, code).astype(np.uint8)


class TableBlocks(Blocks):
    """The same for nvfp4; the quotient is taken in float64 and rounded to float32, which is the float32 quotient."""

    def divide(self, x: Array, scale: Array, g: np.float32) -> Array:
        d = (scale * g).astype(np.float64)
        return (x.astype(np.float64) / d).astype(np.float32)

    def store(self, raw: Array) -> Array:
        nan = np.isnan(raw)
        return np.where(nan, 0x7F, nearest(np.where(nan, 0, raw.astype(np.float64)), _E4M3)).astype(np.uint8)

    def encode(self, q: Array) -> Array:
        wide = np.where(np.isnan(q), 0, np.abs(q.astype(np.float64)))
        return (nearest(wide, E2M1.astype(np.float64)) + 8 * np.signbit(q)).astype(np.uint8)


class HalvesBlocks(Blocks):
    """nvfp4 by comparisons alone: a code is the number of borders that the quotient has passed."""

    def encode(self, q: Array) -> Array:
        size = np.abs(q)
        passed = (size > 0.25).astype(np.uint8) + (size >= 0.75) + (size > 1.25) + (size >= 1.75)
        passed += (size > 2.5).astype(np.uint8) + (size >= 3.5) + (size > 5)
        return (passed | np.where(np.signbit(q), 8, 0)).astype(np.uint8)

    def global_scale(self, amax: Array) -> np.float32:
        g = amax.astype(np.float64) / 2688
        return np.float32(g) if np.float32(g) > 0 else ONE


def kernels() -> list[Kernel]:
    """Every right kernel in NumPy."""
    quantizers: tuple[type[Described], ...] = (Rows, Blocks, TableRows, IntegerRows, TableBlocks, HalvesBlocks)
    return [kernel for each in (*quantizers, *WRITERS, *READERS) for kernel in of_class(each)]
