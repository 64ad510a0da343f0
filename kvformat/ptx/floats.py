"""The steps on floats, lane by lane: bit patterns of binary32 in the low half of a lane, or of binary64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kvformat.elements.static import inlined
from kvformat.ptx import steps as s
from kvformat.ptx.native import fused

U = np.uint64
F = np.float32
D = np.float64
NAN32 = U(0x7FFF_FFFF)
NAN64 = U(0x7FF8_0000_0000_0000)
SIGN32, SIGN64 = U(1 << 31), U(1 << 63)
INFINITY32 = U(0b0_11111111 << 23)
ZERO, ONE, TWO, THREE, FOUR = U(0), U(1), U(2), U(3), U(4)


@inlined
def f32(bits: Any) -> Any:
    """The binary32 number of a lane."""
    return np.uint32(bits).view(np.float32)


@inlined
def lane32(value: Any) -> Any:
    """A binary32 result as a lane: every NaN is 0x7FFFFFFF, whatever the operands' payloads and signs were."""
    return U(F(value).view(np.uint32)) if value == value else NAN32


@inlined
def f64(bits: Any) -> Any:
    """The binary64 number of a lane."""
    return U(bits).view(np.float64)


@inlined
def lane64(value: Any) -> Any:
    """A binary64 result as a lane; the ISA says nothing of NaN payloads here: one quiet NaN."""
    return D(value).view(np.uint64) if value == value else NAN64


@inlined
def flushed(a: Any) -> Any:
    """.ftz: a subnormal becomes a zero of its sign."""
    return a & SIGN32 if a & INFINITY32 == ZERO else a


@inlined
def smaller(a: Any, b: Any) -> Any:
    """Whether a < b with -0 below +0; neither is a NaN."""
    return a < b or (a == b and np.signbit(a) and not np.signbit(b))


@inlined
def chosen32(a: Any, b: Any, how: Any, largest: Any) -> Any:
    """Min or max: a NaN gives way (how & 1: wins); how & 4: of magnitudes; how & 2: these with the xor of the signs."""
    sign = (a ^ b) & SIGN32
    if how & U(6):
        a, b = a & ~SIGN32, b & ~SIGN32
    p, q = f32(a), f32(b)
    if p != p or q != q:
        if how & ONE or (p != p and q != q):
            return NAN32
        out = b if p != p else a
    else:
        out = a if smaller(p, q) != largest else b
    # the sign is taken of the operands as they came, also where one of them was the NaN that gave way
    return (out | sign) if how & TWO else out


@inlined
def chosen64(a: Any, b: Any, largest: Any) -> Any:
    """Min or max of binary64; a NaN gives way."""
    p, q = f64(a), f64(b)
    if p != p:
        return b if q == q else NAN64
    if q != q:
        return a
    return a if smaller(p, q) != largest else b


@inlined
def order(p: Any, q: Any) -> Any:
    """0 less, 1 equal, 2 greater, 3 unordered."""
    return ZERO if p < q else (ONE if p == q else (TWO if p > q else THREE))


@inlined
def stepped(bits: Any, places: Any) -> Any:
    """So many places further in the order of values; zeros, Inf and NaN stay, and nothing passes zero or Inf."""
    magnitude = bits & ~SIGN32
    if magnitude == ZERO or magnitude >= INFINITY32:
        return bits
    outward = places if bits & SIGN32 == ZERO else -places
    moved = np.int64(magnitude) + outward
    return (bits & SIGN32) | U(min(max(moved, np.int64(0)), np.int64(INFINITY32)))


@inlined
def sum_to_odd(a: Any, b: Any) -> Any:
    """The sum in binary64, rounded to odd: where it is inexact, the neighbour whose last bit is 1."""
    total = a + b
    if not abs(total) < np.inf:
        return total
    # Knuth's two-sum: the error of a sum is a binary64 number
    shadow = total - a
    error = (a - (total - shadow)) + (b - shadow)
    bits = D(total).view(np.uint64)
    if error != 0.0 and bits & ONE == ZERO:
        bits = bits + ONE if (error > 0.0) == (total > 0.0) else bits - ONE
    return f64(bits)


@inlined
def function(value: Any, which: Any) -> Any:
    """The function of an approximate instruction, in binary64."""
    if which == s.EX2:
        return np.exp2(value)
    if which == s.LG2:
        return np.log2(value) if value >= 0.0 else np.nan
    if which == s.SIN:
        return math.sin(value) if abs(value) < np.inf else np.nan
    if which == s.COS:
        return math.cos(value) if abs(value) < np.inf else np.nan
    if which == s.TANH:
        return math.tanh(value)
    return 1.0 / np.sqrt(value)


@inlined
def bounded(value: Any, which: Any, policy: Any, bound: Any) -> Any:
    """An approximate function: the nearest number, or the lowest or highest that the documented error allows."""
    exact = function(value, which)
    near = F(exact)
    # zeros, Inf and NaN are exact, and so are the powers of two at integers wherever a GPU was seen
    whole = which == s.EX2 and value == np.floor(value)
    if policy == ZERO or whole or not 0.0 < abs(exact) < np.inf:
        return lane32(near)
    absolute = which in (s.LG2, s.SIN, s.COS)
    room = bound if absolute else abs(exact) * bound
    edge = exact - room if policy == ONE else exact + room
    bits = lane32(F(edge))
    inward = np.int64(1) if policy == ONE else np.int64(-1)
    outside = D(f32(bits)) < edge if policy == ONE else D(f32(bits)) > edge
    return stepped(bits, inward) if outside else bits


@inlined
def class_of(value: Any, smallest: Any) -> Any:
    """testp: 0 NaN, 1 infinite, 2 subnormal or zero, 3 normal."""
    size = abs(value)
    return ZERO if value != value else (ONE if size == np.inf else (TWO if size < smallest else THREE))


@inlined
def approximate_quotient(a: Any, b: Any) -> Any:
    """div.approx: the ISA's range of divisors ends at 2^126; beyond it the result is 0, or NaN of an Inf."""
    p, q = f32(a), f32(b)
    if F(2.0**126) < abs(q) < np.inf:
        return ((a ^ b) & SIGN32) if abs(p) < np.inf else NAN32
    return lane32(p / q)


@inlined
def saturated32(a: Any) -> Any:
    """.sat: to 0 .. 1, a NaN to +0."""
    p = f32(a)
    return lane32(min(p, F(1.0))) if p > F(0.0) else ZERO


@inlined
def saturated64(a: Any) -> Any:
    """Likewise."""
    p = f64(a)
    return lane64(min(p, 1.0)) if p > 0.0 else ZERO


@inlined
def rectified(a: Any) -> Any:
    """.relu: negatives to +0."""
    p = f32(a)
    return NAN32 if p != p else (ZERO if a & SIGN32 else a)


#: step -> what one lane does; the names say which rows and constants of the step it takes
LANES: dict[int, Callable[..., Any]] = {
    s.FADD: lambda a, b: lane32(f32(a) + f32(b)),
    s.FSUB: lambda a, b: lane32(f32(a) - f32(b)),
    s.FMUL: lambda a, b: lane32(f32(a) * f32(b)),
    s.FFMA: lambda a, b, c: lane32(fused(f32(a), f32(b), f32(c))),
    s.FDIV: lambda a, b: lane32(f32(a) / f32(b)),
    s.FDIVAPPROX: approximate_quotient,
    s.FSQRT: lambda a: lane32(np.sqrt(f32(a))),
    s.FMIN: lambda a, b, z: chosen32(a, b, z, False),
    s.FMAX: lambda a, b, z: chosen32(a, b, z, True),
    s.FCMP: lambda a, b, z: (z >> order(f32(a), f32(b))) & ONE,
    s.FLUSH: flushed,
    s.FSAT: saturated32,
    s.FRELU: rectified,
    s.FCANON: lambda a: lane32(f32(a)),
    s.FULPS: lambda a, y: stepped(a, np.int64(y)),
    s.FAPPROX: lambda a, x, y, z: bounded(D(f32(a)), z, y, f64(x)),
    s.DADD: lambda a, b: lane64(f64(a) + f64(b)),
    s.DSUB: lambda a, b: lane64(f64(a) - f64(b)),
    s.DMUL: lambda a, b: lane64(f64(a) * f64(b)),
    s.DFMA: lambda a, b, c: lane64(fused(f64(a), f64(b), f64(c))),
    s.DDIV: lambda a, b: lane64(f64(a) / f64(b)),
    s.DSQRT: lambda a: lane64(np.sqrt(f64(a))),
    s.DMIN: lambda a, b: chosen64(a, b, False),
    s.DMAX: lambda a, b: chosen64(a, b, True),
    s.DCMP: lambda a, b, z: (z >> order(f64(a), f64(b))) & ONE,
    s.DADDODD: lambda a, b: lane64(sum_to_odd(f64(a), f64(b))),
    # the product of two numbers of at most 24 bits is exact
    s.DFMAODD: lambda a, b, c: lane64(sum_to_odd(f64(a) * f64(b), f64(c))),
    s.DSAT: saturated64,
    s.CLASSF: lambda a, z: (z >> class_of(f32(a), F(2.0**-126))) & ONE,
    s.CLASSD: lambda a, z: (z >> class_of(f64(a), 2.0**-1022)) & ONE,
}
