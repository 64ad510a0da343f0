"""The steps that convert, lane by lane: floats to floats through binary64, to and from integers, to and from codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvformat.elements.codec import Conversion, encode_bits
from kvformat.elements.element import Rounding
from kvformat.elements.formats import BINARIES, element
from kvformat.elements.static import inlined, static
from kvformat.ptx import steps as s
from kvformat.ptx.floats import INFINITY32, ONE, SIGN32, TWO, ZERO, f32, f64, lane32, lane64
from kvformat.recipes.reduce import WIDENERS

U = np.uint64
I = np.int64
F = np.float32
D = np.float64
NAN16, SIGN16 = U(0x7FFF), U(0x8000)
INFINITY16, INFINITYB16 = U(0b0_11111 << 10), U(0b0_11111111 << 7)

_F16 = static(Conversion(BINARIES["float16"], "ieee"))
_BF16 = static(Conversion(BINARIES["bfloat16"], "ieee"))


def _decoded() -> Any:
    """binary32 patterns of every code of every format; a NaN code is 0x7FFFFFFF."""
    table = np.full((len(s.CODES), 256), 0x7FFF_FFFF, np.uint64)
    for number, name in enumerate(s.CODES.values()):
        fmt = element(name)
        values = fmt.values().astype(np.float32)
        table[number, : fmt.codes] = np.where(np.isnan(values), 0x7FFF_FFFF, values.view(np.uint32))
    return table


DECODED = _decoded()
_wide16 = WIDENERS["float16"]


@inlined
def outward(value: Any, rounding: Any) -> Any:
    """Whether a directed rounding of the number goes away from zero."""
    return (rounding == s.RP and value > 0.0) or (rounding == s.RM and value < 0.0)


@inlined
def bits16(code: Any, back: Any, value: Any, rounding: Any, largest: Any) -> Any:
    """A binary64 number as a pattern of 16 bits: code, the nearest one, whose value is `back`, moved to the direction.

    One rounding: neighbours are one code apart, and the nearest one missed at most one of them; Inf - 1 is the largest
    finite number. NaN is 0x7FFF. largest: where magnitudes end (.satfinite).
    """
    if value != value:
        return NAN16
    if rounding != s.RN and back != value:
        grew = abs(back) > abs(value)
        if grew and not outward(value, rounding):
            code -= ONE
        elif not grew and outward(value, rounding):
            code += ONE
    return (code & SIGN16) | min(code & NAN16, largest)


@inlined
def to_binary32(value: Any, rounding: Any, saturate: Any) -> Any:
    """A binary64 number as binary32, rounded once in the direction; NaN is 0x7FFFFFFF."""
    near = F(value)
    bits = lane32(near)
    if value != value:
        return bits
    back = D(near)
    if rounding != s.RN and back != value:
        grew = abs(back) > abs(value)
        # one place between neighbours, in the direction that the nearest number missed; Inf - 1 is the largest
        if grew and not outward(value, rounding):
            bits -= ONE
        elif not grew and outward(value, rounding):
            bits += ONE
    if saturate and bits & INFINITY32 == INFINITY32:
        return (bits & SIGN32) | U(0x7F7F_FFFF)
    return bits


@inlined
def integral(value: Any, rounding: Any) -> Any:
    """Rounded to an integer; a zero keeps the sign of the operand."""
    if rounding == s.RN:
        return np.rint(value)
    if rounding == s.RZ:
        return np.trunc(value)
    return np.floor(value) if rounding == s.RM else np.ceil(value)


@inlined
def to_integer(value: Any, rounding: Any, mask: Any, how: Any) -> Any:
    """Saturated to the integer type whose mask that is; how & 1: signed; how & 2: NaN to 0, else to the top bit."""
    top = mask - (mask >> ONE)
    if value != value:
        return ZERO if how & TWO else top
    whole = integral(value, rounding)
    if how & ONE:
        if whole >= D(top):
            return top - ONE
        return top if whole < -D(top) else U(I(whole)) & mask
    if whole <= 0.0:
        return ZERO
    limit = 2.0 * D(top)
    if whole >= limit:
        return mask
    # from 2^63 on a signed conversion of the host has no answer
    return U(I(whole)) if whole < 9223372036854775808.0 else U(I(whole - 9223372036854775808.0)) + (ONE << U(63))


@inlined
def from_integer_to_odd(bits: Any, is_signed: Any) -> Any:
    """A 64-bit integer in binary64, rounded to odd, so that a rounding to 32 or 16 bits after it is the only one."""
    negative = is_signed and bits >> U(63) != ZERO
    size = ZERO - bits if negative else bits
    # 11 low bits at most are lost: they become one sticky bit
    if size >> U(53):
        size = ((size >> U(11)) | (ONE if size & U(0x7FF) else ZERO)) << U(11)
        high = D(I(size >> U(11))) * 2048.0
    else:
        high = D(I(size))
    return -high if negative else high


_DIRECTIONS: dict[str, Rounding] = {"rn": "nearest_even", "rz": "down", "rp": "up"}


def encoder(name: str, how: str) -> Callable[..., Any]:
    """A binary32 number as a code of the format; what has no code saturates (.satfinite)."""
    conversion = static(Conversion(element(s.CODES[name]), "saturate", _DIRECTIONS[how]))
    return lambda a: U(encode_bits(conversion, np.uint32(a)))


@inlined
def to_f16(a: Any, rounding: Any, largest: Any) -> Any:
    """A binary64 number as binary16."""
    code = U(encode_bits(_F16, a))
    return bits16(code, D(_wide16(np.uint16(code))), f64(a), rounding, largest)


@inlined
def to_bf16(a: Any, rounding: Any, largest: Any) -> Any:
    """A binary64 number as bfloat16."""
    code = U(encode_bits(_BF16, a))
    return bits16(code, D(f32(code << U(16))), f64(a), rounding, largest)


@inlined
def from_integer32(a: Any, z: Any) -> Any:
    """An integer as binary32, to nearest even."""
    return lane32(F(I(a)) if z else F(a))


@inlined
def from_integer64(a: Any, z: Any) -> Any:
    """An integer as binary64, to nearest even."""
    return lane64(D(I(a)) if z else D(a))


#: step -> what one lane does; the names say which rows and constants of the step it takes
LANES: dict[int, Callable[..., Any]] = {
    s.WIDE32: lambda a: lane64(D(f32(a))),
    s.WIDE16: lambda a: lane64(D(_wide16(np.uint16(a)))),
    s.WIDEB16: lambda a: lane64(D(f32(a << U(16)))),
    s.TO32: lambda a, y, z: to_binary32(f64(a), y, z != ZERO),
    s.TO16: lambda a, y, z: to_f16(a, y, INFINITY16 - z),
    s.TOB16: lambda a, y, z: to_bf16(a, y, INFINITYB16 - z),
    s.TOINT: lambda a, x, y, z: to_integer(f64(a), y, x, z),
    s.INTEGRAL: lambda a, y: lane64(integral(f64(a), y)),
    s.FROMINT32: from_integer32,
    s.FROMINT64: from_integer64,
    s.FROMINTODD: lambda a, z: lane64(from_integer_to_odd(a, z != ZERO)),
    s.FROM16: lambda a: lane32(_wide16(np.uint16(a))),
    s.FROMB16: lambda a: lane32(f32(a << U(16))),
    **{step: encoder(name, how) for (name, how), step in s.ENCODE.items()},
    s.DECODE: lambda a, z: DECODED[z, a],
}
