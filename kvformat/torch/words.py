"""What each word of a recipe does in a Triton kernel: one small function per word, on blocks of float32 or float64.

A word takes its operands and its attributes, a compile-time constant. No function here is left to a compiler's choice
of instruction: division is `div_rn`, a product is rounded before it is added (kernels are launched with
`enable_fp_fusion=False`), signs are bits. An approximate word gives the IEEE result, as it does in the other engines.
"""

# ruff: noqa: ARG001, ARG005, PLR0124, RET505 every word takes HOW; x != x asks for NaN; Triton compiles the branch that holds

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import triton
import triton.language as tl
from triton import knobs

from kvformat.recipes.program import Operation
from kvformat.recipes.words import encode_policy
from kvformat.torch.codec import bits_of, encode, encoding, float_of, narrowing, widen

#: True where kernels run in Triton's interpreter (TRITON_INTERPRET=1 when triton was imported)
INTERPRETED: bool = bool(knobs.runtime.interpret)


@triton.jit
def _sign_of(a: tl.tensor) -> tl.tensor:
    bits = bits_of(a)
    return bits & (1 << (a.dtype.primitive_bitwidth - 1))


@triton.jit
def _abs(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return float_of(bits_of(a) & ((1 << (a.dtype.primitive_bitwidth - 1)) - 1))


@triton.jit
def _neg(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return float_of(bits_of(a) ^ (1 << (a.dtype.primitive_bitwidth - 1)))


@triton.jit
def _copysign(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return float_of(bits_of(_abs(a, None)) | _sign_of(b))


@triton.jit
def _add(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a + b


@triton.jit
def _sub(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a - b


@triton.jit
def _mul(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a * b


@triton.jit
def _div(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    if a.dtype == tl.float64:
        return a / b  # binary64 has one division, and it is correctly rounded
    else:
        return tl.div_rn(a, b)


@triton.jit
def _rcp(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return _div(tl.full((1, 1, 1), 1, a.dtype), a, None)


@triton.jit
def _fused(a: tl.tensor, b: tl.tensor, c: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return tl.fma(a, b, c)


@triton.jit
def _fused_by_two_sums(a: tl.tensor, b: tl.tensor, c: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    # For the interpreter, whose fma rounds twice. In binary64 the product is exact; the sum is rounded to odd (its
    # error by Knuth's two-sum), and from 53 bits to odd to 24 to nearest is one rounding.
    product, addend = a.to(tl.float64) * b.to(tl.float64), c.to(tl.float64)
    total = product + addend
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    bits = bits_of(total)
    inexact = (error == error) & (error != 0) & ((bits & 1) == 0)
    toward_zero = (error < 0) != (total < 0)
    odd = tl.where(toward_zero, bits - 1, bits + 1)
    return float_of(tl.where(inexact, odd, bits)).to(tl.float32)


@triton.jit
def _max(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    larger = tl.where((a > b) | ((a == b) & (_sign_of(a) == 0)), a, b)
    return tl.where((a != a) | (b != b), a + b, larger)


@triton.jit
def _min(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    smaller = tl.where((a < b) | ((a == b) & (_sign_of(a) != 0)), a, b)
    return tl.where((a != a) | (b != b), a + b, smaller)


@triton.jit
def _max_number(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return tl.where(a != a, b, tl.where(b != b, a, _max(a, b, None)))


@triton.jit
def _min_number(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return tl.where(a != a, b, tl.where(b != b, a, _min(a, b, None)))


@triton.jit
def _clamp(a: tl.tensor, low: tl.tensor, high: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    # both comparisons are false for a NaN, which therefore stays
    return tl.where(a < low, low, tl.where(a > high, high, a))


@triton.jit
def _round(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    # A sum with 2^23 (2^52) has no fraction left and was rounded to nearest even; larger numbers have none. tl.floor
    # and tl.ceil are not used: on NVIDIA they are cvt.rmi.ftz and cvt.rpi.ftz, which take a subnormal for a zero.
    size = _abs(a, None)
    unit: tl.constexpr = 2.0**52 if a.dtype == tl.float64 else 2.0**23
    even = tl.where(size < unit, (size + unit) - unit, size)
    if HOW == "half_even":
        return _copysign(even, a, None)
    else:
        below = tl.where(even > size, even - 1, even)
        if HOW == "half_away":
            # trunc(a + 0.5) would take 0.49999997 to 1, since the sum rounds up; a - trunc(a) is exact
            return _copysign(tl.where(size - below >= 0.5, below + 1, below), a, None)
        else:
            whole = _copysign(below, a, None)
            if HOW == "up":
                return tl.where(a > whole, whole + 1, whole)
            elif HOW == "down":
                return tl.where(a < whole, whole - 1, whole)
            else:
                tl.static_assert(HOW == "toward_zero")
                return whole


@triton.jit
def _to(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    if HOW[0] == "float32":
        return a.to(tl.float32).to(a.dtype)
    else:
        DTYPE: tl.constexpr = HOW[0]
        ENCODE: tl.constexpr = HOW[1]
        return widen(encode(a, ENCODE), DTYPE).to(a.dtype)


@triton.jit
def _pow2(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    # every float32 is a normal float64, whose bits without the mantissa are the power of two
    power = float_of(bits_of(a.to(tl.float64)) & (0b0_11111111111 << 52))
    if HOW == "up":
        power = tl.where(power == _abs(a, None).to(tl.float64), power, power * 2)
    return tl.where(a == a, power.to(a.dtype), a)


@triton.jit
def _flush(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return tl.where(_abs(a, None) < 2.0**-126, float_of(_sign_of(a)), a)


@triton.jit
def _rcp_approx(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    if HOW == "ftz":
        return _flush(_rcp(_flush(a, None), None), None)
    else:
        return _rcp(a, None)


@triton.jit
def _div_approx(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    if HOW == "ftz":
        return _flush(_div(_flush(a, None), _flush(b, None), None), None)
    else:
        return _div(a, b, None)


@triton.jit
def _splice(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    fits = (b >= 0) & (b <= HOW)
    integer = tl.where(fits, b, b - b).to(tl.int32).to(tl.uint32)
    pattern = (bits_of(a.to(tl.float32)) & (0xFFFF_FFFF - HOW)) | integer
    return tl.where(a == a, float_of(pattern).to(a.dtype), a)


@triton.jit
def _low_bits(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    low = (bits_of(a.to(tl.float32)) & HOW).to(tl.int32).to(a.dtype)
    return tl.where(_abs(a, None) < float("inf"), low, low - low)


@triton.jit
def _eq(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a == b


@triton.jit
def _ne(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a != b


@triton.jit
def _lt(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a < b


@triton.jit
def _le(a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a <= b


@triton.jit
def _isnan(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return a != a


@triton.jit
def _isinf(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return _abs(a, None) == float("inf")


@triton.jit
def _select(flag: tl.tensor, a: tl.tensor, b: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return tl.where(flag, a, b)


@triton.jit
def _encode(a: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    return encode(a, HOW)


#: every word that a kernel knows, by name
WORDS: Mapping[str, Any] = MappingProxyType({
    "add": _add, "sub": _sub, "mul": _mul, "div": _div, "rcp": _rcp, "neg": _neg, "abs": _abs, "copysign": _copysign,
    "fma": _fused_by_two_sums if INTERPRETED else _fused,
    "max": _max, "min": _min, "max_number": _max_number, "min_number": _min_number, "clamp": _clamp,
    "round": _round, "to": _to, "pow2": _pow2, "flush": _flush, "splice": _splice, "low_bits": _low_bits,
    "rcp_approx": _rcp_approx, "div_approx": _div_approx, "div_full": _div_approx, "encode": _encode,
    "eq": _eq, "ne": _ne, "lt": _lt, "le": _le, "isnan": _isnan, "isinf": _isinf, "select": _select,
})  # fmt: skip

#: attributes as the function takes them; a word without an entry takes its first attribute, or None
_ATTRIBUTES: Mapping[str, Callable[[Operation, str], Any]] = MappingProxyType({
    "encode": lambda operation, real: encoding(encode_policy(operation), real),
    "to": lambda operation, real: _rounding(operation.attributes[0], real),
    "splice": lambda operation, real: (1 << int(operation.attributes[0])) - 1,
    "low_bits": lambda operation, real: (1 << int(operation.attributes[0])) - 1,
})  # fmt: skip


def _rounding(dtype: str, real: str) -> tuple[str, Any]:
    return dtype, None if dtype == "float32" else narrowing(dtype, real)


def attributes(operation: Operation, real: str) -> Any:
    """An operation's attributes as its word's function takes them, for operands in `real`."""
    if operation.word in _ATTRIBUTES:
        return _ATTRIBUTES[operation.word](operation, real)
    return operation.attributes[0] if operation.attributes else None
