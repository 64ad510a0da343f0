"""The steps on integers, lane by lane: patterns of 64 bits whose upper bits, above the operand's width, are zero."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from kvformat.elements.static import compiled, inlined
from kvformat.ptx import steps as s
from kvformat.ptx.native import lanes_at

U = np.uint64
I = np.int64
ZERO, ONE, EIGHT, THIRTY_TWO, SIXTY_THREE, SIXTY_FOUR = U(0), U(1), U(8), U(32), U(63), U(64)
LOW8, LOW32 = U(0xFF), U(0xFFFF_FFFF)


@inlined
def signed(a: Any, y: Any) -> Any:
    """The two's complement number in the low 64 - y bits."""
    return I(a << y) >> I(y)


@inlined
def high_product(a: Any, b: Any) -> Any:
    """The upper 64 bits of a product of 128."""
    al, ah, bl, bh = a & LOW32, a >> THIRTY_TWO, b & LOW32, b >> THIRTY_TWO
    middle = ah * bl + (al * bl >> THIRTY_TWO)
    other = al * bh + (middle & LOW32)
    return ah * bh + (middle >> THIRTY_TWO) + (other >> THIRTY_TWO)


@inlined
def permuted(a: Any, b: Any, selector: Any) -> Any:
    """prmt: each nibble of the selector names one of 8 bytes; its bit 3 replicates that byte's sign."""
    both = (b << THIRTY_TWO) | a
    out = ZERO
    for k in range(4):
        nibble = selector >> U(4 * k)
        byte = (both >> ((nibble & U(7)) << U(3))) & LOW8
        if nibble & U(8):
            byte = LOW8 if byte & U(0x80) else ZERO
        out |= byte << U(8 * k)
    return out


@inlined
def extracted(a: Any, b: Any, c: Any, y: Any, is_signed: Any) -> Any:
    """bfe: c bits (8 bits of it) of a from bit b on; beyond the top they are zeros, or the field's sign."""
    width = SIXTY_FOUR - y
    position, length = b & LOW8, c & LOW8
    if length == ZERO:
        return ZERO
    field = a >> position if position < width else ZERO
    mask = (ONE << length) - ONE if length < SIXTY_FOUR else ~ZERO
    field &= mask
    if is_signed:
        top = min(position + length - ONE, width - ONE)
        if (a >> top) & ONE:
            present = width - position if position < width else ZERO
            kept = min(length, present)
            ones = ~ZERO if kept == ZERO else (~ZERO << kept if kept < SIXTY_FOUR else ZERO)
            field |= ones
    return field


@inlined
def inserted(a: Any, b: Any, c: Any, g: Any, y: Any) -> Any:
    """bfi: the low g bits of a put into b at bit c; what does not fit is cut."""
    width = SIXTY_FOUR - y
    position, length = c & LOW8, g & LOW8
    if length == ZERO or position >= width:
        return b
    mask = ((ONE << length) - ONE if length < SIXTY_FOUR else ~ZERO) << position
    return (b & ~mask) | ((a << position) & mask)


@inlined
def leading(a: Any, y: Any) -> Any:
    """The leading zeros of 64 - y bits."""
    count, n, width = ZERO, a << y, SIXTY_FOUR - y
    if a == ZERO:
        return width
    for k in (32, 16, 8, 4, 2, 1):
        if n >> U(64 - k) == ZERO:
            n <<= U(k)
            count += U(k)
    return count


@inlined
def ones(a: Any) -> Any:
    """How many bits are set."""
    n = a - ((a >> ONE) & U(0x5555_5555_5555_5555))
    n = (n & U(0x3333_3333_3333_3333)) + ((n >> U(2)) & U(0x3333_3333_3333_3333))
    n = (n + (n >> U(4))) & U(0x0F0F_0F0F_0F0F_0F0F)
    return (n * U(0x0101_0101_0101_0101)) >> U(56)


@inlined
def reversed_bits(a: Any, y: Any) -> Any:
    """The low 64 - y bits in reverse order."""
    n = ((a >> ONE) & U(0x5555_5555_5555_5555)) | ((a & U(0x5555_5555_5555_5555)) << ONE)
    n = ((n >> U(2)) & U(0x3333_3333_3333_3333)) | ((n & U(0x3333_3333_3333_3333)) << U(2))
    n = ((n >> U(4)) & U(0x0F0F_0F0F_0F0F_0F0F)) | ((n & U(0x0F0F_0F0F_0F0F_0F0F)) << U(4))
    n = ((n >> U(8)) & U(0x00FF_00FF_00FF_00FF)) | ((n & U(0x00FF_00FF_00FF_00FF)) << U(8))
    n = ((n >> U(16)) & U(0x0000_FFFF_0000_FFFF)) | ((n & U(0x0000_FFFF_0000_FFFF)) << U(16))
    n = (n >> THIRTY_TWO) | (n << THIRTY_TWO)
    return n >> y


@inlined
def shifted_left(a: Any, b: Any, y: Any) -> Any:
    """The 32-bit amount is not reduced: at the width and above nothing is left."""
    return a << b if b < SIXTY_FOUR - y else ZERO


@inlined
def shifted_right(a: Any, b: Any, y: Any) -> Any:
    """Likewise."""
    return a >> b if b < SIXTY_FOUR - y else ZERO


@inlined
def shifted_signed(a: Any, b: Any, y: Any) -> Any:
    """At the width and above the sign is left."""
    return U(signed(a, y) >> I(min(b, SIXTY_THREE)))


@compiled
def run(
    key: Any,
    op: int,
    n: int,
    to: Any,
    second: Any,
    first: Any,
    other: Any,
    third: Any,
    fourth: Any,
    x: Any,
    y: Any,
    z: Any,
) -> None:
    """One step on n lanes; the rows d, e, a, b, c, g lie at those addresses."""
    # one function on purpose: what Numba calls is optimised by itself, and again where it is called
    d, e = carray(lanes_at(to), n), carray(lanes_at(second), n)
    a, b = carray(lanes_at(first), n), carray(lanes_at(other), n)
    c, g = carray(lanes_at(third), n), carray(lanes_at(fourth), n)
    if op == s.MOV:
        for i in range(n):
            d[i] = a[i] & x
    elif op == s.ADD:
        for i in range(n):
            d[i] = (a[i] + b[i]) & x
    elif op == s.SUB:
        for i in range(n):
            d[i] = (a[i] - b[i]) & x
    elif op == s.MUL:
        for i in range(n):
            d[i] = (a[i] * b[i]) & x
    elif op == s.MAD:
        for i in range(n):
            d[i] = (a[i] * b[i] + c[i]) & x
    elif op == s.AND:
        for i in range(n):
            d[i] = a[i] & b[i]
    elif op == s.OR:
        for i in range(n):
            d[i] = a[i] | b[i]
    elif op == s.XOR:
        for i in range(n):
            d[i] = a[i] ^ b[i]
    elif op == s.NOT:
        for i in range(n):
            d[i] = ~a[i] & x
    elif op == s.CNOT:
        for i in range(n):
            d[i] = ONE if a[i] == ZERO else ZERO
    elif op == s.SEXT:
        for i in range(n):
            d[i] = U(signed(a[i], y)) & x
    elif op == s.MINU:
        for i in range(n):
            d[i] = min(a[i], b[i])
    elif op == s.MAXU:
        for i in range(n):
            d[i] = max(a[i], b[i])
    elif op == s.MINS:
        for i in range(n):
            d[i] = a[i] if signed(a[i], y) < signed(b[i], y) else b[i]
    elif op == s.MAXS:
        for i in range(n):
            d[i] = a[i] if signed(a[i], y) > signed(b[i], y) else b[i]
    elif op == s.SHL:
        for i in range(n):
            d[i] = shifted_left(a[i], b[i], y) & x
    elif op == s.SHRU:
        for i in range(n):
            d[i] = shifted_right(a[i], b[i], y)
    elif op == s.SHRS:
        for i in range(n):
            d[i] = shifted_signed(a[i], b[i], y) & x
    elif op == s.MULWIDES:
        for i in range(n):
            d[i] = U(signed(a[i], y) * signed(b[i], y)) & x
    elif op == s.CMPU:
        for i in range(n):
            order = ZERO if a[i] < b[i] else (ONE if a[i] == b[i] else U(2))
            d[i] = (z >> order) & ONE
    elif op == s.CMPS:
        for i in range(n):
            order = ZERO if signed(a[i], y) < signed(b[i], y) else (ONE if a[i] == b[i] else U(2))
            d[i] = (z >> order) & ONE
    elif op == s.SELP:
        for i in range(n):
            d[i] = a[i] if c[i] != ZERO else b[i]
    elif op == s.PACK:
        for i in range(n):
            d[i] = a[i] | (b[i] << y) | (c[i] << (y + y)) | (g[i] << (y + y + y))
    elif op == s.PART:
        for i in range(n):
            d[i] = (a[i] >> y) & x
    elif op == s.DIVU:
        for i in range(n):
            d[i] = a[i] // max(b[i], ONE)
    elif op == s.REMU:
        for i in range(n):
            d[i] = a[i] % max(b[i], ONE)
    elif op in (s.DIVS, s.REMS):
        for i in range(n):
            p, q = signed(a[i], y), signed(b[i], y)
            up = U(-p) if p < I(0) else U(p)
            uq = max(U(-q) if q < I(0) else U(q), ONE)
            if op == s.DIVS:  # truncated: the quotient's sign is that of both, the remainder's the dividend's
                r = up // uq
                d[i] = (ZERO - r if (p < I(0)) != (q < I(0)) else r) & x
            else:
                r = up % uq
                d[i] = (ZERO - r if p < I(0) else r) & x
    elif op == s.MULHIU:
        for i in range(n):
            d[i] = high_product(a[i], b[i]) if y == ZERO else (a[i] * b[i]) >> (SIXTY_FOUR - y)
    elif op == s.MULHIS:
        for i in range(n):
            p, q = signed(a[i], y), signed(b[i], y)
            if y == ZERO:
                high = high_product(a[i], b[i])
                high -= b[i] if p < I(0) else ZERO
                high -= a[i] if q < I(0) else ZERO
                d[i] = high
            else:
                d[i] = U((p * q) >> I(SIXTY_FOUR - y)) & x
    elif op == s.ADDCC:
        for i in range(n):
            total = (a[i] + b[i]) & x
            carry = total < a[i]
            total2 = (total + c[i]) & x
            e[i] = ONE if carry or total2 < total else ZERO
            d[i] = total2
    elif op == s.SUBCC:
        for i in range(n):
            total = (a[i] - b[i]) & x
            borrow = a[i] < b[i]
            e[i] = ONE if borrow or total < c[i] else ZERO
            d[i] = (total - c[i]) & x
    elif op == s.PRMT:
        for i in range(n):
            d[i] = permuted(a[i], b[i], c[i])
    elif op == s.BFEU:
        for i in range(n):
            d[i] = extracted(a[i], b[i], c[i], y, False)
    elif op == s.BFES:
        for i in range(n):
            d[i] = extracted(a[i], b[i], c[i], y, True) & x
    elif op == s.BFI:
        for i in range(n):
            d[i] = inserted(a[i], b[i], c[i], g[i], y) & x
    elif op == s.BFIND:
        for i in range(n):
            zeros = leading(a[i], y)
            top = SIXTY_THREE - y - zeros if a[i] != ZERO else LOW32
            d[i] = (zeros if z != ZERO and a[i] != ZERO else top) & LOW32
    elif op == s.BREV:
        for i in range(n):
            d[i] = reversed_bits(a[i], y)
    elif op == s.CLZ:
        for i in range(n):
            d[i] = leading(a[i], y)
    elif op == s.POPC:
        for i in range(n):
            d[i] = ones(a[i])
    elif op == s.SHFL:
        for i in range(n):
            amount = min(c[i], THIRTY_TWO) if z else c[i] & U(31)
            d[i] = ((((b[i] << THIRTY_TWO) | a[i]) << amount) >> THIRTY_TWO) & LOW32
    elif op == s.SHFR:
        for i in range(n):
            amount = min(c[i], THIRTY_TWO) if z else c[i] & U(31)
            d[i] = (((b[i] << THIRTY_TWO) | a[i]) >> amount) & LOW32
    elif op == s.LOP3:
        for i in range(n):
            out = ZERO
            for k in range(8):
                if (z >> U(k)) & ONE:
                    out |= (a[i] if k & 4 else ~a[i]) & (b[i] if k & 2 else ~b[i]) & (c[i] if k & 1 else ~c[i])
            d[i] = out & x
    elif op == s.COPYSIGN:
        for i in range(n):
            d[i] = (a[i] & z) | (b[i] & ~z & x)
