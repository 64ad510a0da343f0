"""Triton kernels that tools/device_check.py alone needs: encoders on bit patterns, instructions, a rival writer."""

from __future__ import annotations

import triton
import triton.language as tl

from kvformat.torch.codec import encode, encode_e2m1x2, encode_e4m3x2, widen


@triton.jit
def encode_patterns(
    codes: tl.tensor, first: tl.tensor, HOW: tl.constexpr, HARDWARE: tl.constexpr, TILE: tl.constexpr
) -> None:
    """The codes of the TILE float32 patterns from `first` + TILE * program on."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = (first + index).to(tl.float32, bitcast=True)
    if HARDWARE and HOW.instruction == "e4m3x2":
        tl.store(codes + index, encode_e4m3x2(x))
    elif HARDWARE and HOW.instruction == "e2m1x2":
        tl.store(codes + index, encode_e2m1x2(x, x) & 0xF)
    else:
        tl.store(codes + index, encode(x, HOW))


@triton.jit
def approximate_reciprocals(out: tl.tensor, exponent: tl.tensor, TILE: tl.constexpr) -> None:
    """rcp.approx.ftz.f32 of all mantissas in one binade: patterns."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = (index | (exponent << 23)).to(tl.float32, bitcast=True)
    found = tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", constraints="=f,f", args=[x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + index, found.to(tl.int32, bitcast=True))


@triton.jit
def full_quotients(out: tl.tensor, exponent: tl.tensor, TILE: tl.constexpr) -> None:
    """div.full.f32(1, m) of all mantissas in one binade: patterns."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = (index | (exponent << 23)).to(tl.float32, bitcast=True)
    one = tl.full((TILE,), 1.0, tl.float32)
    found = tl.inline_asm_elementwise(
        "div.full.f32 $0, $1, $2;", constraints="=f,f,f", args=[one, x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + index, found.to(tl.int32, bitcast=True))


@triton.jit
def approximate_quotients(out: tl.tensor, divisors: tl.tensor, TILE: tl.constexpr) -> None:
    """div.approx.f32(1, c)."""
    index = tl.arange(0, TILE)
    one = tl.full((TILE,), 1.0, tl.float32)
    found = tl.inline_asm_elementwise(
        "div.approx.f32 $0, $1, $2;",
        constraints="=f,f,f",
        args=[one, tl.load(divisors + index)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(out + index, found)


@triton.jit
def write_row_by_row(
    x: tl.tensor,
    slots: tl.tensor,
    pages: tl.tensor,
    page_bytes: tl.tensor,
    cell: tl.tensor,
    top: tl.tensor,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    START: tl.constexpr,
    INTEGER: tl.constexpr,
) -> None:
    """One program per token and head, as vLLM's per-token-head writer is shaped (HND cells): a rival for bandwidth.

    Its arithmetic is vLLM's, through the integer codec.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    dim = tl.arange(0, DIMS)
    values = widen(tl.load(x + (token * HEADS + head) * DIMS + dim), "bfloat16")
    scale = tl.maximum(tl.max(tl.abs(values), axis=0) / top, 1e-6)
    quotient = values * (1.0 / scale)
    row = pages + slot // BLOCK_SIZE * page_bytes + (head * BLOCK_SIZE + slot % BLOCK_SIZE) * cell + START
    if INTEGER:
        quotient = tl.where(quotient >= 0, quotient + 0.5, quotient - 0.5)
        codes = tl.clamp(quotient, -128.0, 127.0).to(tl.int8).to(tl.uint8, bitcast=True)
    else:
        codes = encode_e4m3x2(tl.clamp(quotient, -448.0, 448.0))
    tl.store(row + dim, codes)
    tl.store((row + DIMS).to(tl.pointer_type(tl.float32)), scale)


@triton.jit
def instruction(
    out: tl.tensor, a: tl.tensor, b: tl.tensor, c: tl.tensor, ASSEMBLY: tl.constexpr, SOURCES: tl.constexpr,
    TILE: tl.constexpr,
) -> None:  # fmt: skip
    """One instruction on 32-bit patterns."""
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = tl.load(a + index)
    if SOURCES == 1:
        found = tl.inline_asm_elementwise(ASSEMBLY, "=r,r", [x], dtype=tl.int32, is_pure=True, pack=1)
    elif SOURCES == 2:
        found = tl.inline_asm_elementwise(
            ASSEMBLY, "=r,r,r", [x, tl.load(b + index)], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        found = tl.inline_asm_elementwise(
            ASSEMBLY, "=r,r,r,r", [x, tl.load(b + index), tl.load(c + index)], dtype=tl.int32, is_pure=True, pack=1
        )
    tl.store(out + index, found)
