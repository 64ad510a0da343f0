"""The steps on integers, lane by lane: patterns of 64 bits whose upper bits, above the operand's width, are zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvformat.elements.static import inlined
from kvformat.ptx import steps as s

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
def permuted(a: Any, b: Any, c: Any) -> Any:
    """prmt: each nibble of c names one of 8 bytes; its bit 3 replicates that byte's sign."""
    both = (b << THIRTY_TWO) | a
    out = ZERO
    for k in range(4):
        nibble = c >> U(4 * k)
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


@inlined
def size_of(a: Any, y: Any) -> Any:
    """The magnitude of a two's complement number."""
    p = signed(a, y)
    return U(-p) if p < I(0) else U(p)


@inlined
def quotient(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Truncated: its sign is that of both. The machine has looked for a divisor of 0."""
    r = size_of(a, y) // max(size_of(b, y), ONE)
    return (ZERO - r if (signed(a, y) < I(0)) != (signed(b, y) < I(0)) else r) & x


@inlined
def remainder(a: Any, b: Any, x: Any, y: Any) -> Any:
    """Its sign is the dividend's."""
    r = size_of(a, y) % max(size_of(b, y), ONE)
    return (ZERO - r if signed(a, y) < I(0) else r) & x


@inlined
def high_half(a: Any, b: Any, y: Any) -> Any:
    """The upper half of an unsigned product."""
    return high_product(a, b) if y == ZERO else (a * b) >> (SIXTY_FOUR - y)


@inlined
def high_half_signed(a: Any, b: Any, x: Any, y: Any) -> Any:
    """The upper half of a signed product."""
    p, q = signed(a, y), signed(b, y)
    if y == ZERO:
        high = high_product(a, b)
        high -= b if p < I(0) else ZERO
        high -= a if q < I(0) else ZERO
        return high
    return U((p * q) >> I(SIXTY_FOUR - y)) & x


@inlined
def sum_and_carry(a: Any, b: Any, c: Any, x: Any) -> Any:
    """The sum a + b + c, and what is carried out of it."""
    first = (a + b) & x
    total = (first + c) & x
    return total, ONE if first < a or total < first else ZERO


@inlined
def difference_and_borrow(a: Any, b: Any, c: Any, x: Any) -> Any:
    """The difference a - b - c, and what is borrowed for it."""
    first = (a - b) & x
    return (first - c) & x, ONE if a < b or first < c else ZERO


@inlined
def found(a: Any, y: Any, z: Any) -> Any:
    """bfind: the position of the highest bit, or the shift that brings it to the top; 0xFFFFFFFF of 0."""
    zeros = leading(a, y)
    top = SIXTY_THREE - y - zeros if a != ZERO else LOW32
    return (zeros if z != ZERO and a != ZERO else top) & LOW32


@inlined
def amount(c: Any, z: Any) -> Any:
    """By how much a funnel shifts: clamped at 32, or its low 5 bits."""
    return min(c, THIRTY_TWO) if z else c & U(31)


@inlined
def looked_up(a: Any, b: Any, c: Any, x: Any, z: Any) -> Any:
    """lop3: bit 4a + 2b + c of the table z, for every bit of the operands."""
    out = ZERO
    for k in range(8):
        if (z >> U(k)) & ONE:
            out |= (a if k & 4 else ~a) & (b if k & 2 else ~b) & (c if k & 1 else ~c)
    return out & x


@inlined
def compared(less: Any, equal: Any, z: Any) -> Any:
    """The bit of z that stands for the order: less, equal, greater."""
    return (z >> (ZERO if less else (ONE if equal else U(2)))) & ONE


#: step -> what one lane does; the names say which rows and constants of the step it takes
LANES: dict[int, Callable[..., Any]] = {
    s.MOV: lambda a, x: a & x,
    s.ADD: lambda a, b, x: (a + b) & x,
    s.SUB: lambda a, b, x: (a - b) & x,
    s.MUL: lambda a, b, x: (a * b) & x,
    s.MAD: lambda a, b, c, x: (a * b + c) & x,
    s.AND: lambda a, b: a & b,
    s.OR: lambda a, b: a | b,
    s.XOR: lambda a, b: a ^ b,
    s.NOT: lambda a, x: ~a & x,
    s.CNOT: lambda a: ONE if a == ZERO else ZERO,
    s.SEXT: lambda a, x, y: U(signed(a, y)) & x,
    s.MINU: lambda a, b: a if a < b else b,
    s.MAXU: lambda a, b: a if a > b else b,
    s.MINS: lambda a, b, y: a if signed(a, y) < signed(b, y) else b,
    s.MAXS: lambda a, b, y: a if signed(a, y) > signed(b, y) else b,
    s.SHL: lambda a, b, x, y: shifted_left(a, b, y) & x,
    s.SHRU: shifted_right,
    s.SHRS: lambda a, b, x, y: shifted_signed(a, b, y) & x,
    s.DIVU: lambda a, b: a // max(b, ONE),
    s.REMU: lambda a, b: a % max(b, ONE),
    s.DIVS: quotient,
    s.REMS: remainder,
    s.MULHIU: high_half,
    s.MULHIS: high_half_signed,
    s.MULWIDES: lambda a, b, x, y: U(signed(a, y) * signed(b, y)) & x,
    s.ADDCC: sum_and_carry,
    s.SUBCC: difference_and_borrow,
    s.CMPU: lambda a, b, z: compared(a < b, a == b, z),
    s.CMPS: lambda a, b, y, z: compared(signed(a, y) < signed(b, y), a == b, z),
    s.SELP: lambda a, b, c: a if c != ZERO else b,
    s.PRMT: permuted,
    s.BFEU: lambda a, b, c, y: extracted(a, b, c, y, False),
    s.BFES: lambda a, b, c, x, y: extracted(a, b, c, y, True) & x,
    s.BFI: lambda a, b, c, g, x, y: inserted(a, b, c, g, y) & x,
    s.BFIND: found,
    s.BREV: reversed_bits,
    s.CLZ: leading,
    s.POPC: ones,
    s.SHFL: lambda a, b, c, z: ((((b << THIRTY_TWO) | a) << amount(c, z)) >> THIRTY_TWO) & LOW32,
    s.SHFR: lambda a, b, c, z: (((b << THIRTY_TWO) | a) >> amount(c, z)) & LOW32,
    s.LOP3: looked_up,
    s.COPYSIGN: lambda a, b, x, z: (a & z) | (b & ~z & x),
    s.PACK: lambda a, b, c, g, y: a | (b << y) | (c << (y + y)) | (g << (y + y + y)),
    s.PART: lambda a, x, y: (a >> y) & x,
}
