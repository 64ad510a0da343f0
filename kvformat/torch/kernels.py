"""The Triton kernels, one per kind of data movement: write, gather, and what a scale shared by a tensor needs.

Each handles a tile of (token, head) rows. What they compute is a recipe and where it lies a layout, both compile-time
constants; no kernel knows a name of either. Rows are numbered token * HEADS + head.

Numbers are annotated as tensors on purpose: a kernel whose stride has a type by annotation is not specialised on its
being 1, and then loads one element at a time.
"""

# ruff: noqa: RET505, RUF005, SIM108 Triton compiles the branch that holds, up to its end; it knows no star

from __future__ import annotations

import triton
import triton.language as tl

from kvformat.torch.arithmetic import dequantized, encoded, quantized, reduced, run
from kvformat.torch.codec import decode, narrow, widen
from kvformat.torch.places import load_entries, store_entries


@triton.jit
def _load_rows(
    x: tl.tensor,
    token: tl.tensor,
    head: tl.tensor,
    kept: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    dim_stride: tl.tensor,
    DIMS: tl.constexpr,
    TILE: tl.constexpr,
) -> tl.tuple:
    """Patterns of rows and which exist: (rows, groups, elements of a group), TILE = (groups, elements)."""
    group = tl.arange(0, TILE[0])[:, None] * TILE[1]
    dim = group + tl.arange(0, TILE[1])[None, :]
    # strides of 2^26 elements are real (heads of a cache's tensors): 32-bit offsets would wrap
    row = token.to(tl.int64) * token_stride + head.to(tl.int64) * head_stride
    where = x + (row[:, None, None] + dim.to(tl.int64)[None, :, :] * dim_stride)
    mask = kept[:, None, None]
    if TILE[0] * TILE[1] > DIMS:
        mask = mask & (dim < DIMS)[None, :, :]
    return tl.load(where, mask=mask, other=0), mask


@triton.jit
def _one(where: tl.tensor) -> tl.tensor:
    """A single number, in three axes."""
    return tl.reshape(tl.load(where + tl.arange(0, 1)), (1, 1, 1))


@triton.jit
def _slots(slots: tl.tensor, token: tl.tensor, exists: tl.tensor, count: tl.tensor, errors: tl.tensor) -> tl.tuple:
    """The slot of each row and whether it is written; the flag names a token whose slot is past the end, plus 1."""
    slot = tl.load(slots + token, mask=exists, other=-1).to(tl.int64)
    tl.atomic_max(errors + token * 0, (token + 1).to(tl.int64), mask=slot >= count, sem="relaxed")
    return slot, (slot >= 0) & (slot < count)


@triton.jit
def write_rows(
    x: tl.tensor,
    slots: tl.tensor,
    outer: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    errors: tl.tensor,
    rows: tl.tensor,
    num_slots: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    dim_stride: tl.tensor,
    DTYPE: tl.constexpr,
    HOW: tl.constexpr,
    CODES: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
    HARDWARE: tl.constexpr,
) -> None:
    """Quantize rows and store codes and scales.

    x: patterns (tokens, heads, dims) of DTYPE with any strides. slots: (tokens,), None: row t is page t. outer: the
    tensor's scale, float32 (1,), or None. HOW: a `Quantizer`, or None with CODES of x's own bits. SCALES: None where no
    scale is stored in the page.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = row // HEADS, row % HEADS
    exists = row < rows
    if slots is None:
        page, slot, kept = token.to(tl.int64), token * 0, exists
    else:
        flat, kept = _slots(slots, token, exists, num_slots, errors)
        page, slot = flat // BLOCK_SIZE, flat % BLOCK_SIZE
    bits, mask = _load_rows(x, token, head, kept, token_stride, head_stride, dim_stride, DIMS, TILE)
    given: tl.tuple = ()
    if outer is not None:
        given = (_one(outer),)
    quotient, stored = quantized(widen(bits, DTYPE), mask, given, HOW)
    ENCODE: tl.constexpr = HOW.encode
    store_entries(codes, page, slot, head, encoded(quotient, ENCODE, PACKED, HARDWARE), kept, CODES)
    if SCALES is not None:
        entries = tl.reshape(stored, (ROWS, TILE[0])).to(SCALES.entry.dtype, bitcast=True)
        store_entries(scales, page, slot, head, entries, kept, SCALES)


@triton.jit
def write_values(
    x: tl.tensor,
    slots: tl.tensor,
    pages: tl.tensor,
    errors: tl.tensor,
    rows: tl.tensor,
    num_slots: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    dim_stride: tl.tensor,
    DTYPE: tl.constexpr,
    STORED: tl.constexpr,
    NARROW: tl.constexpr,
    PLACE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Store rows as they are, or rounded once to the cache's dtype STORED: mode none."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = row // HEADS, row % HEADS
    flat, kept = _slots(slots, token, row < rows, num_slots, errors)
    bits, _ = _load_rows(x, token, head, kept, token_stride, head_stride, dim_stride, DIMS, TILE)
    if DTYPE != STORED:
        bits = narrow(widen(bits, DTYPE), STORED, NARROW)
    entries = tl.reshape(bits, (ROWS, TILE[0] * TILE[1])).to(PLACE.entry.dtype, bitcast=True)
    store_entries(pages, flat // BLOCK_SIZE, flat % BLOCK_SIZE, head, entries, kept, PLACE)


@triton.jit
def gather_rows(
    out: tl.tensor,
    blocks: tl.tensor,
    outer: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    errors: tl.tensor,
    rows: tl.tensor,
    num_blocks: tl.tensor,
    OUT: tl.constexpr,
    NARROW: tl.constexpr,
    STORED: tl.constexpr,
    HOW: tl.constexpr,
    CODES: tl.constexpr,
    SCALES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
) -> None:
    """Read the rows of a sequence's tokens and decode them.

    out: patterns (tokens, heads, dims) of OUT, contiguous. blocks: the sequence's blocks in order, None: row t is page
    t. HOW: a `Dequantizer`, or None where the page holds values of dtype STORED.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token, head = row // HEADS, row % HEADS
    exists = row < rows
    if blocks is None:
        page, slot, kept = token.to(tl.int64), token * 0, exists
    else:
        page, slot = tl.load(blocks + token // BLOCK_SIZE, mask=exists, other=0).to(tl.int64), token % BLOCK_SIZE
        kept = exists & (page >= 0) & (page < num_blocks)
        tl.atomic_max(errors + token * 0, (token + 1).to(tl.int64), mask=exists & (kept == 0), sem="relaxed")
    values = read_rows(outer, codes, scales, page, slot, head, kept, STORED, HOW, CODES, SCALES, ROWS, TILE, PACKED)
    dim = tl.arange(0, TILE[0] * TILE[1])
    where = out + (row.to(tl.int64)[:, None] * DIMS + dim[None, :])
    mask = exists[:, None]
    if TILE[0] * TILE[1] > DIMS:
        mask = mask & (dim < DIMS)[None, :]
    values = tl.where(kept[:, None], values, 0.0)  # of a block that the cache does not have
    tl.store(where, narrow(values, OUT, NARROW), mask=mask)


@triton.jit
def read_rows(
    outer: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    page: tl.tensor,
    slot: tl.tensor,
    head: tl.tensor,
    kept: tl.tensor,
    STORED: tl.constexpr,
    HOW: tl.constexpr,
    CODES: tl.constexpr,
    SCALES: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    PACKED: tl.constexpr,
) -> tl.tensor:
    """The float32 values of rows (ROWS, dims of the tile)."""
    columns: tl.constexpr = TILE[0] * TILE[1]
    if HOW is None:
        entries = load_entries(codes, page, slot, head, columns, kept, CODES)
        signed: tl.constexpr = tl.int32 if STORED == "float32" else tl.int16
        return widen(entries.to(signed, bitcast=True), STORED)
    else:
        if PACKED:
            pairs = load_entries(codes, page, slot, head, columns // 2, kept, CODES)
            patterns = tl.interleave(pairs & 0xF, pairs >> 4)
        else:
            patterns = load_entries(codes, page, slot, head, columns, kept, CODES)
        given: tl.tuple = ()
        if outer is not None:
            given = (_one(outer),)
        scale = None
        if SCALES is not None:
            entries = load_entries(scales, page, slot, head, TILE[0], kept, SCALES)
            READ: tl.constexpr = HOW.read
            scale = tl.reshape(_scales(entries, READ), (ROWS, TILE[0], 1))
        values = dequantized(tl.reshape(patterns, (ROWS, TILE[0], TILE[1])), given, scale, HOW)
        return tl.reshape(values, (ROWS, columns))


@triton.jit
def _scales(entries: tl.tensor, READ: tl.constexpr) -> tl.tensor:
    if READ is None:
        return entries.to(tl.float32, bitcast=True)
    else:
        return decode(entries, READ)


@triton.jit
def reduce_rows(
    x: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    token_stride: tl.tensor,
    head_stride: tl.tensor,
    dim_stride: tl.tensor,
    DTYPE: tl.constexpr,
    HOW: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """The reductions of HOW, a `Scaler`, over a tile of rows: float32 (programs, reductions), a flag as 0 or 1."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    bits, mask = _load_rows(x, row // HEADS, row % HEADS, row < rows, token_stride, head_stride, dim_stride, DIMS, TILE)
    whole: tl.constexpr = (1, 1, ROWS * TILE[0] * TILE[1])
    mask = tl.reshape(tl.broadcast_to(mask, (ROWS, TILE[0], TILE[1])), whole)
    found = reduced(tl.reshape(widen(bits, DTYPE), whole), mask, HOW)
    for i in tl.static_range(len(HOW.reductions)):
        at = partial + tl.program_id(0) * len(HOW.reductions) + i + tl.arange(0, 1)
        tl.store(at, tl.reshape(found[i].to(tl.float32), (1,)))


@triton.jit
def scale_tensor(partial: tl.tensor, scale: tl.tensor, count: tl.tensor, HOW: tl.constexpr, TILE: tl.constexpr) -> None:
    """The scale of a tensor from the reductions of its tiles: they combine by maximum, NaN above everything."""
    values: tl.tuple = ()
    for i in tl.static_range(len(HOW.reductions)):
        # signed patterns in the order of the numbers, as in `arithmetic`; a NaN here is positive and above Inf
        top = tl.full((1, 1, TILE), -0x8000_0000, tl.int32)
        for start in range(0, count, TILE):
            index = start + tl.arange(0, TILE)[None, None, :]
            found = tl.load(partial + index * len(HOW.reductions) + i, mask=index < count, other=0.0)
            bits = found.to(tl.int32, bitcast=True)
            top = tl.maximum(top, tl.where(index < count, bits ^ ((bits >> 31) & 0x7FFF_FFFF), -0x8000_0000))
        best = tl.max(top, axis=2, keep_dims=True)
        value = (best ^ ((best >> 31) & 0x7FFF_FFFF)).to(tl.float32, bitcast=True)
        if HOW.reductions[i] == "any_nan":
            values = values + (value > 0,)
        else:
            values = values + (value,)
    SCALE: tl.constexpr = HOW.scale
    made = run(values, SCALE)[SCALE.result].to(tl.float32)
    tl.store(scale + tl.arange(0, 1), tl.reshape(made, (1,)))
