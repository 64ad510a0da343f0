"""Named swizzles as digit data: how the (row, column) plane of one head's entries is permuted, or tiled, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple


class Term(NamedTuple):
    """One digit of a row or column index: each step moves by `rows` row pitches and `entries` entries."""

    size: int
    rows: int
    entries: int


class Plane(NamedTuple):
    """A plane's digits, most significant first, and the rows and columns it occupies, padding included."""

    rows: int
    columns: int
    row: tuple[Term, ...]
    column: tuple[Term, ...]


@dataclass(frozen=True)
class Swizzle:
    """A rule that lays out a plane of any size: `plane(rows, columns)` gives its digits."""

    name: str
    plane: Callable[[int, int], Plane]
    source: str
    #: the rows and the columns of a plane must be multiples of these
    row_multiple: int = 1
    column_multiple: int = 1
    #: True: the plane is one contiguous piece of memory, so rows of different heads cannot lie between its own
    contiguous: bool = False


def _linear(rows: int, columns: int) -> Plane:
    return Plane(rows, columns, (Term(rows, 1, 0),), (Term(columns, 0, 1),))


def _four_token(rows: int, columns: int) -> Plane:
    # t' = t//4*4 + g//(S/4), g' = g%(S/4)*4 + t%4 with S columns: a token's four quarter rows become four rows
    quarter = columns // 4
    row = (Term(rows // 4, 4, 0), Term(4, 0, 1))
    return Plane(rows, columns, row, (Term(4, 1, 0), Term(quarter, 0, 4)))


def _four_column(rows: int, columns: int) -> Plane:
    # s%4*(S/4) + s//4 with S columns: the entries of a thread that takes every fourth one lie side by side
    quarter = columns // 4
    return Plane(rows, columns, (Term(rows, 1, 0),), (Term(quarter, 0, 1), Term(4, 0, quarter)))


def _thirty_two_row(rows: int, columns: int) -> Plane:
    # p%32*(P/32) + p//32 with P rows: rows 32 apart lie side by side
    return Plane(rows, columns, (Term(rows // 32, 1, 0), Term(32, rows // 32, 0)), (Term(columns, 0, 1),))


def _tiles_128x4(rows: int, columns: int) -> Plane:
    # k%4 + k//4*512 + m%32*16 + m%128//32*4 + m//128*128*ceil4(K): tiles of 512 entries, 4 of a row side by side
    down, across = -(-rows // 128), -(-columns // 4)
    row = (Term(down, 0, 512 * across), Term(4, 0, 4), Term(32, 0, 16))
    return Plane(128 * down, 4 * across, row, (Term(across, 0, 512), Term(4, 0, 1)))


def _tiles_8x4(rows: int, columns: int) -> Plane:
    # m//8*nK*32 + k//4*32 + m%8*4 + k%4 with nK = ceil(K/4): tiles of 32 entries
    down, across = -(-rows // 8), -(-columns // 4)
    row = (Term(down, 0, 32 * across), Term(8, 0, 4))
    return Plane(8 * down, 4 * across, row, (Term(across, 0, 32), Term(4, 0, 1)))


def _packed_columns(x: int) -> Callable[[int, int], Plane]:
    # [columns / x][rows][x]: x columns of a row side by side, then those of the next row
    def plane(rows: int, columns: int) -> Plane:
        return Plane(rows, columns, (Term(rows, 0, x),), (Term(columns // x, 0, rows * x), Term(x, 0, 1)))

    return plane


def _packed_rows(x: int) -> Callable[[int, int], Plane]:
    # [rows / x][columns][x]: x rows of a column side by side, then those of the next column
    def plane(rows: int, columns: int) -> Plane:
        return Plane(rows, columns, (Term(rows // x, 0, columns * x), Term(x, 0, 1)), (Term(columns, 0, x),))

    return plane


def _halves(rows: int, columns: int) -> Plane:
    # column j beside column j + C/2: the two halves of a row interleaved
    return Plane(rows, columns, (Term(rows, 1, 0),), (Term(2, 0, 1), Term(columns // 2, 0, 2)))


def _transposed(rows: int, columns: int) -> Plane:
    return Plane(rows, columns, (Term(rows, 0, 1),), (Term(columns, 0, rows),))


_SWIZZLES = (
    Swizzle("linear", _linear, "row-major"),
    Swizzle(
        "4-token",
        _four_token,
        "vLLM 0.33 csrc/nvfp4_kv_cache_kernels.cu L34-48; TensorRT-LLM quantizeAndWriteFP4KVCache",
        row_multiple=4,
        column_multiple=4,  # else t' and g' collide: 16 dims per column make this head_size % 64
    ),
    Swizzle(
        "4-column",
        _four_column,
        "vLLM 0.33 csrc/nvfp4_ds_mla_cache_kernels.cu L36-69",
        column_multiple=4,
    ),
    Swizzle(
        "32-row",
        _thirty_two_row,
        "SGLang 0.5 kernels/ops/kvcache/mxfp8_quant_store_kv.py, BlockScaledBasicChunk",
        row_multiple=32,
        contiguous=True,
    ),
    Swizzle("128x4", _tiles_128x4, "cuBLAS block-scale tiles; torchao to_blocked, FlashInfer", contiguous=True),
    Swizzle("8x4", _tiles_8x4, "FlashInfer and TensorRT-LLM 8x4 scale tiles", contiguous=True),
    Swizzle(
        "halves",
        _halves,
        "ggml-common.h, block_q4_0 and the like: j in the low nibble, j + 16 in the high one",
        column_multiple=2,
    ),
    Swizzle("transposed", _transposed, "vLLM csrc/cache_kernels.cu, value_cache of reshape_and_cache", contiguous=True),
    *(
        Swizzle(
            f"packed-{x}",
            _packed_columns(x),
            "vLLM csrc/cache_kernels.cu, key_cache of reshape_and_cache: x entries fill 16 bytes; AITER",
            column_multiple=x,
            contiguous=True,
        )
        for x in (4, 8, 16)
    ),
    *(
        Swizzle(
            f"row-packed-{x}",
            _packed_rows(x),
            "AITER, the V of its assembly kernels: x slots fill 16 bytes",
            row_multiple=x,
            contiguous=True,
        )
        for x in (4, 8, 16)
    ),
)

#: every swizzle by name
SWIZZLES: Mapping[str, Swizzle] = MappingProxyType({swizzle.name: swizzle for swizzle in _SWIZZLES})
