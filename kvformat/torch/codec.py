"""The golden codecs in Triton: integer arithmetic only, so the interpreter, every NVIDIA and every AMD GPU agree.

`encode` is `kvformat.elements.codec` on blocks: the same significand, the same shift, the same one rounding. Nothing
here depends on what a GPU's conversions do; the one exception, `encode_e4m3x2` and `encode_e2m1x2`, says so.
"""

# ruff: noqa: RET505, SIM108 Triton compiles the branch that holds, up to its end

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl

from kvformat.elements.codec import Conversion
from kvformat.elements.formats import BINARIES, ElementFormat
from kvformat.errors import InputError


@dataclass(frozen=True)
class Encoding:
    """The numbers of one encode from binary32 or binary64, as `kvformat.elements.codec` derives them."""

    width: int
    mantissa: int
    implicit: int
    fraction: int
    absolute: int
    infinity: int
    #: exponent field of the format's smallest normal number; the bits below a code's last one there
    lowest: int
    shift: int
    most: int
    sign_shift: int
    sign_mask: int
    largest: int
    beyond: int
    nan_code: int
    codes_mask: int
    integer: bool
    #: a negative number becomes 0
    unsigned: bool
    negative_zero: bool
    same_range: bool
    rounding: str
    bits: int
    #: the PTX conversion that gives the same codes from binary32, "" where there is none
    instruction: str


@dataclass(frozen=True)
class Decoding:
    """The numbers of one decode to binary32."""

    bits: int
    integer: bool
    unsigned: bool
    mantissa: int
    bias: int
    magnitude_mask: int
    #: the largest magnitude pattern that is a number, and the one that is Inf (-1: none)
    largest: int
    infinity: int
    #: the pattern of -0 is the format's NaN
    sign_is_nan: bool


#: what the instructions compute: nearest even, saturating, NaN to 0x7F or to +6 (PTX ISA, cvt)
_INSTRUCTIONS = {"e4m3fn": "e4m3x2", "e2m1fn": "e2m1x2"}


def encoding(how: Conversion, real: str) -> Encoding:
    """The numbers of a conversion from `real`, "float32" or "float64". Raises InputError for e8m0fnu and codebooks."""
    fmt = how.format
    _check_kind(fmt)
    mantissa, bias, width = (23, 127, 32) if real == "float32" else (52, 1023, 64)
    shift = mantissa - fmt.mantissa_bits
    plain = how.overflow == "saturate" or fmt.always_saturates
    by_instruction = plain and how.rounding == "nearest_even" and real == "float32"
    return Encoding(
        width=width,
        mantissa=mantissa,
        implicit=1 << mantissa,
        fraction=(1 << mantissa) - 1,
        absolute=(1 << (width - 1)) - 1,
        infinity=(2 * bias + 1) << mantissa,
        lowest=bias + 1 - fmt.bias,
        shift=shift,
        most=width - 1 - shift,
        sign_shift=width - fmt.bits,
        sign_mask=fmt.sign_bit,
        largest=fmt.max_code,
        beyond=fmt.max_code if how.overflow == "saturate" else fmt.overflow_code,
        nan_code=fmt.nan_input_code,
        codes_mask=fmt.codes - 1,
        integer=fmt.signed_integer,
        unsigned=fmt.negatives != "kept",
        negative_zero=fmt.has_negative_zero,
        same_range=bias == fmt.bias,
        rounding=how.rounding,
        bits=fmt.bits,
        instruction=_INSTRUCTIONS.get(fmt.name, "") if by_instruction else "",
    )


def decoding(fmt: ElementFormat) -> Decoding:
    """The numbers of a format's decode. Raises InputError for e8m0fnu and codebooks."""
    _check_kind(fmt)
    infinity = fmt.inf_codes[0] if fmt.inf_codes else -1
    return Decoding(
        bits=fmt.bits,
        integer=fmt.kind == "integer",
        unsigned=not fmt.sign_bit,
        mantissa=fmt.mantissa_bits,
        bias=fmt.bias,
        magnitude_mask=fmt.codes - 1 - fmt.sign_bit,
        largest=max(fmt.max_code, infinity),
        infinity=infinity,
        sign_is_nan=bool(fmt.sign_bit) and fmt.sign_bit in fmt.nan_codes,
    )


def _check_kind(fmt: ElementFormat) -> None:
    if fmt.kind not in ("float", "integer"):
        raise InputError(f"{fmt.name} has no Triton kernel; use CPU tensors")


def narrowing(dtype: str, real: str) -> Encoding:
    """Rounding to float16 or bfloat16, overflow to Inf."""
    return encoding(Conversion(BINARIES[dtype], "ieee"), real)


@triton.jit
def bits_of(x: tl.tensor) -> tl.tensor:
    """The pattern of binary32 or binary64 numbers."""
    if x.dtype == tl.float64:
        return x.to(tl.uint64, bitcast=True)
    else:
        return x.to(tl.uint32, bitcast=True)


@triton.jit
def float_of(bits: tl.tensor) -> tl.tensor:
    """The numbers of patterns."""
    if bits.dtype == tl.uint64:
        return bits.to(tl.float64, bitcast=True)
    else:
        return bits.to(tl.float32, bitcast=True)


@triton.jit
def round_shift(pattern: tl.tensor, shift: tl.tensor, ROUNDING: tl.constexpr) -> tl.tensor:
    """The one rounding of an encode: `pattern` / 2^shift, rounded to an integer; shift >= 1."""
    one = shift - shift + 1
    if ROUNDING == "down":
        return pattern >> shift
    elif ROUNDING == "up":
        return (pattern + ((one << shift) - 1)) >> shift
    elif ROUNDING == "nearest_even":
        # just under half a unit carries everything above the tie; the last kept bit carries the tie if it is odd
        return (pattern + ((one << (shift - 1)) - 1) + ((pattern >> shift) & 1)) >> shift
    elif ROUNDING == "nearest_away":
        return (pattern + (one << (shift - 1))) >> shift
    else:
        tl.static_assert(ROUNDING == "nearest_toward_zero")
        return (pattern + ((one << (shift - 1)) - 1)) >> shift


@triton.jit
def encode(x: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    """The codes of binary32 or binary64 numbers: uint8 patterns, uint16 for float16 and bfloat16."""
    bits = bits_of(x)
    magnitude = bits & HOW.absolute
    exponent = magnitude >> HOW.mantissa
    significand = magnitude & HOW.fraction
    if HOW.same_range:  # a subnormal input has no implicit bit; only bfloat16, with the exponents of binary32, can tell
        significand = tl.where(exponent >= 1, significand | HOW.implicit, significand)
    else:
        significand = significand | HOW.implicit
    exponent = tl.maximum(exponent, exponent - exponent + 1)
    lowest = exponent - exponent + HOW.lowest
    above = tl.maximum(exponent, lowest) - lowest
    below = tl.minimum(lowest - tl.minimum(exponent, lowest), lowest - lowest + HOW.most)
    ROUNDING: tl.constexpr = HOW.rounding
    code = round_shift((above << HOW.mantissa) + significand, below + HOW.shift, ROUNDING)
    sign = (bits >> HOW.sign_shift) & HOW.sign_mask
    if HOW.unsigned:
        code = tl.where(code <= HOW.largest, code, code - code + HOW.beyond)
        code = tl.where((bits >> (HOW.width - 1)) == 0, code, code - code)
    elif HOW.integer:
        # two's complement reaches one further below zero: -128, 127
        top = tl.where(sign != 0, sign - sign + HOW.largest + 1, sign - sign + HOW.largest)
        code = tl.minimum(code, top)
        code = tl.where(sign != 0, (sign - sign - code) & HOW.codes_mask, code)
    else:
        code = tl.where(code <= HOW.largest, code, code - code + HOW.beyond)
        if HOW.negative_zero:
            code = code | sign
        else:
            code = tl.where(code != 0, code | sign, code)
    code = tl.where(magnitude > HOW.infinity, code - code + HOW.nan_code, code)
    if HOW.bits == 16:
        return code.to(tl.uint16)
    else:
        return code.to(tl.uint8)


@triton.jit
def decode(codes: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    """The values of uint8 codes, one per byte: float32."""
    if HOW.integer and HOW.unsigned:
        return codes.to(tl.float32)
    elif HOW.integer:
        spare: tl.constexpr = 8 - HOW.bits
        return ((codes << spare).to(tl.int8, bitcast=True) >> spare).to(tl.float32)
    else:
        wide = codes.to(tl.uint32)
        magnitude = wide & HOW.magnitude_mask
        sign = (wide >> (HOW.bits - 1)) << 31 if not HOW.unsigned else wide - wide
        normal = (magnitude << (23 - HOW.mantissa)) + ((127 - HOW.bias) << 23)
        # a number without the implicit bit is its mantissa times the smallest step: an exact product
        step: tl.constexpr = 2.0 ** (1 - HOW.bias - HOW.mantissa)
        small = (magnitude.to(tl.int32).to(tl.float32) * step).to(tl.uint32, bitcast=True)
        pattern = tl.where(magnitude >= (1 << HOW.mantissa), normal, small)
        if HOW.infinity >= 0:
            pattern = tl.where(magnitude == HOW.infinity, pattern - pattern + (0b0_11111111 << 23), pattern)
        pattern = pattern | sign
        if HOW.largest < HOW.magnitude_mask:
            pattern = tl.where(magnitude > HOW.largest, pattern - pattern + (0b0_11111111_1 << 22), pattern)
        if HOW.sign_is_nan:
            pattern = tl.where((magnitude == 0) & (sign != 0), pattern - pattern + (0b0_11111111_1 << 22), pattern)
        return pattern.to(tl.float32, bitcast=True)


@triton.jit
def widen(bits: tl.tensor, DTYPE: tl.constexpr) -> tl.tensor:
    """float32 of the patterns of float32, float16 or bfloat16, exactly."""
    if DTYPE == "float32":
        return bits.to(tl.float32, bitcast=True)
    elif DTYPE == "bfloat16":
        return (bits.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        tl.static_assert(DTYPE == "float16")
        return bits.to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def narrow(x: tl.tensor, DTYPE: tl.constexpr, HOW: tl.constexpr) -> tl.tensor:
    """The patterns of float32 numbers rounded once to float32, float16 or bfloat16: int32 or int16."""
    if DTYPE == "float32":
        return x.to(tl.int32, bitcast=True)
    else:
        return encode(x, HOW).to(tl.int16, bitcast=True)


@triton.jit
def encode_e4m3x2(x: tl.tensor) -> tl.tensor:
    """e4m3fn codes by the instruction of sm_89 and newer; the first operand of a cvt lands in the high byte."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b16 low, high;
            cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
            cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
            mov.b32 $0, {low, high};
        }
        """,
        constraints="=r,f,f,f,f",
        args=[x],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )


@triton.jit
def encode_e2m1x2(even: tl.tensor, odd: tl.tensor) -> tl.tensor:
    """Bytes of two e2m1fn codes, `even` in the low nibble, by the instruction of sm_100a, sm_103a and sm_120a."""
    return tl.inline_asm_elementwise(
        """
        {
            .reg .b8 b0, b1, b2, b3;
            cvt.rn.satfinite.e2m1x2.f32 b0, $5, $1;
            cvt.rn.satfinite.e2m1x2.f32 b1, $6, $2;
            cvt.rn.satfinite.e2m1x2.f32 b2, $7, $3;
            cvt.rn.satfinite.e2m1x2.f32 b3, $8, $4;
            mov.b32 $0, {b0, b1, b2, b3};
        }
        """,
        constraints="=r,f,f,f,f,f,f,f,f",
        args=[even, odd],
        dtype=tl.uint8,
        is_pure=True,
        pack=4,
    )
