"""The golden codecs: one branch-free encoder for every element format, compiled by Numba."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple, cast

import ml_dtypes
import numpy as np
from numba import types
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvformat.elements import threads
from kvformat.elements.formats import ElementFormat, Overflow, Rounding, element
from kvformat.elements.static import StaticType, compiled, specialised, static
from kvformat.errors import InputError, unknown_name

_WIDE_KINDS = "float32, float16, bfloat16 or float64"


class Conversion(NamedTuple):
    """One way to encode: the format and the policy where the format has no answer."""

    format: ElementFormat
    overflow: Overflow = "saturate"
    rounding: Rounding = "nearest_even"


class _Source(NamedTuple):
    """The field widths of the binary format that a conversion reads, the types of its patterns and its own."""

    mantissa_bits: int
    bias: int
    unsigned: Any
    signed: Any
    real: Any


_BINARY32 = _Source(23, 127, np.uint32, np.int32, np.float32)
_BINARY64 = _Source(52, 1023, np.uint64, np.int64, np.float64)


def round_shift(conversion: Any, pattern: Any, shift: Any) -> Any:
    """`pattern` / 2^shift, rounded to an integer in the conversion's direction."""
    raise NotImplementedError("compiled code only")


@specialised(round_shift)
def _round_shift(conversion: Any, pattern: Any, shift: Any) -> Any:
    uint = np.uint32 if pattern == types.uint32 else np.uint64
    one = uint(1)
    # Numba shifts in 64 bits; a shift that is visibly below the width lets LLVM narrow it back (2x the SIMD lanes)
    width = uint(8 * uint().itemsize - 1)

    def down(conversion: Any, pattern: Any, shift: Any) -> Any:
        return uint(pattern >> uint(shift & width))

    def up(conversion: Any, pattern: Any, shift: Any) -> Any:
        below_one = uint(uint(one << uint(shift & width)) - one)
        return uint(uint(pattern + below_one) >> uint(shift & width))

    def nearest_even(conversion: Any, pattern: Any, shift: Any) -> Any:
        # just under half a unit carries everything above the tie; the last kept bit carries the tie if it is odd
        below_half = uint(uint(one << uint(uint(shift - one) & width)) - one)
        odd = uint(uint(pattern >> uint(shift & width)) & one)
        return uint(uint(uint(pattern + below_half) + odd) >> uint(shift & width))

    def nearest_away(conversion: Any, pattern: Any, shift: Any) -> Any:
        half = uint(one << uint(uint(shift - one) & width))
        return uint(uint(pattern + half) >> uint(shift & width))

    def nearest_toward_zero(conversion: Any, pattern: Any, shift: Any) -> Any:
        below_half = uint(uint(one << uint(uint(shift - one) & width)) - one)
        return uint(uint(pattern + below_half) >> uint(shift & width))

    directions = {
        "down": down,
        "up": up,
        "nearest_even": nearest_even,
        "nearest_away": nearest_away,
        "nearest_toward_zero": nearest_toward_zero,
    }
    return directions[conversion.value.rounding]


def magnitude_code(conversion: Any, magnitude: Any) -> Any:
    """The code of |x| in a format without an upper end: the one rounding of an encode. |x| as bits, not a NaN."""
    raise NotImplementedError("compiled code only")


@specialised(magnitude_code)
def _magnitude_code(conversion: Any, magnitude: Any) -> Any:
    # A number is 1.f x 2^(exponent field). Its distance from the format's smallest normal exponent, put above the
    # significand, makes one integer whose top bits, rounded, ARE the code: exponent carry, subnormals and ties to the
    # even code need no case of their own. Integers are formats that have subnormals only.
    source = _BINARY32 if magnitude == types.uint32 else _BINARY64
    wanted: Conversion = conversion.value
    nearest_even = wanted.rounding == "nearest_even"
    # bfloat16 has the exponents of binary32: the power of two that rounds its largest numbers is no binary32
    return (_by_addition if nearest_even and wanted.format.bias != source.bias else _by_shift)(wanted, source)


def _by_addition(conversion: Conversion, source: _Source) -> Any:
    # `unit` is the power of two whose own last bit weighs as much as the last bit of x's code: it follows x's exponent
    # down to the smallest normal one. The hardware's addition rounds |x| + unit to nearest, ties to even, so the low
    # bits of the sum are the rounded significand. 1.3x the elements/s of the shifts below, all 2^32 inputs equal.
    fmt = conversion.format
    uint, real = source.unsigned, source.real
    infinity = uint((2 * source.bias + 1) << source.mantissa_bits)
    lowest = uint((source.bias + 1 - fmt.bias) << source.mantissa_bits)
    shift = uint(source.mantissa_bits - fmt.mantissa_bits)
    weight = uint(int(shift) << source.mantissa_bits)
    # the power of two above the largest value: its code is beyond the largest code, and so is that of all above it
    most = uint((source.bias + math.frexp(fmt.max)[1]) << source.mantissa_bits)

    def code(conversion: Any, magnitude: Any) -> Any:
        size = uint(min(magnitude, most))
        exponent = uint(max(uint(size & infinity), lowest))
        unit = uint(exponent + weight)
        rounded = uint(real(uint(size).view(real) + uint(unit).view(real)).view(uint) - unit)
        return uint(rounded + uint(uint(exponent - lowest) >> shift))

    return code


def _by_shift(conversion: Conversion, source: _Source) -> Any:
    # The same integer, made before the rounding: for every direction, from every source.
    fmt = conversion.format
    uint, sint = source.unsigned, source.signed
    mantissa = uint(source.mantissa_bits)
    implicit = uint(1 << source.mantissa_bits)
    fraction = uint((1 << source.mantissa_bits) - 1)
    lowest = sint(source.bias + 1 - fmt.bias)
    shift = sint(source.mantissa_bits - fmt.mantissa_bits)
    # a shift of width - 1 already rounds every significand (24 or 53 bits) to 0
    most = sint(8 * uint().itemsize - 1) - shift
    zero, one = uint(0), sint(1)

    def code(conversion: Any, magnitude: Any) -> Any:
        exponent = sint(magnitude >> mantissa)
        hidden = implicit if exponent >= one else zero  # a subnormal x has no implicit bit
        significand = uint(uint(magnitude & fraction) | hidden)
        exponent = max(exponent, one)
        above = sint(max(exponent, lowest) - lowest)
        below = sint(min(max(sint(lowest - exponent), sint(0)), most))
        pattern = uint(uint(uint(above) << mantissa) + significand)
        return round_shift(conversion, pattern, uint(sint(shift + below)))

    return code


def encode_bits(conversion: Any, bits: Any) -> Any:
    """The code of one number, given as the bits of its binary32 or binary64: an unsigned pattern, uint8 (or uint16)."""
    raise NotImplementedError("compiled code only")


@specialised(encode_bits)
def _encode_bits(conversion: Any, bits: Any) -> Any:
    if not isinstance(conversion, StaticType):
        return None
    source = _BINARY32 if bits == types.uint32 else _BINARY64
    wanted: Conversion = conversion.value
    encoders = {"exponent": _exponent_encoder, "codebook": _codebook_encoder}
    return encoders.get(wanted.format.kind, _scaled_encoder)(wanted, source)


def _scaled_encoder(conversion: Conversion, source: _Source) -> Any:
    # What lies around the rounding: the sign, the format's upper end, NaN.
    fmt = conversion.format
    uint = source.unsigned
    width = 8 * uint().itemsize
    absolute = uint((1 << (width - 1)) - 1)
    infinity = uint((2 * source.bias + 1) << source.mantissa_bits)
    sign_shift = uint(max(width - fmt.bits, 0))
    sign_mask = uint(fmt.sign_bit)
    unsigned = fmt.negatives != "kept"
    last = uint(width - 1)
    largest = uint(fmt.max_code)
    beyond = largest if conversion.overflow == "saturate" else uint(fmt.overflow_code)
    nan_code = uint(fmt.nan_input_code)
    negative_zero = fmt.has_negative_zero
    signed_integer = fmt.signed_integer
    zero = uint(0)
    mask = uint(fmt.codes - 1)
    out = np.uint8 if fmt.bits <= 8 else np.uint16

    def encode(conversion: Any, bits: Any) -> Any:
        magnitude = uint(bits & absolute)
        code = magnitude_code(conversion, magnitude)
        sign = uint(uint(bits >> sign_shift) & sign_mask)
        if unsigned:
            # the value nearest to a negative number is 0
            code = code if code <= largest else beyond
            code = code if uint(bits >> last) == zero else zero
        elif signed_integer:
            # two's complement reaches one further below zero: -128, 127
            top = uint(largest + uint(sign != zero))
            code = min(code, top)
            code = uint(uint(zero - code) & mask) if sign != zero else code
        else:
            code = code if code <= largest else beyond
            code = uint(code | sign) if negative_zero or code != zero else code
        return out(nan_code if magnitude > infinity else code)

    return encode


def _exponent_encoder(conversion: Conversion, source: _Source) -> Any:
    # e8m0fnu: no sign, no mantissa, code 0 is 2^-127 and not zero. Read from binary64, where 2^-127 is normal.
    fmt = conversion.format
    mantissa = np.uint64(52)
    absolute = np.uint64((1 << 63) - 1)
    infinity = np.uint64(2047 << 52)
    lowest = np.uint64((1023 - fmt.bias) << 52)
    largest = np.uint64(fmt.max_code)
    beyond = largest if conversion.overflow == "saturate" else np.uint64(fmt.overflow_code)
    nan_code = np.uint64(fmt.nan_input_code)
    widen = source is _BINARY32

    def encode(conversion: Any, bits: Any) -> Any:
        wide = np.float64(np.uint32(bits).view(np.float32)).view(np.uint64) if widen else bits
        magnitude = np.uint64(wide & absolute)
        pattern = np.uint64(max(magnitude, lowest) - lowest)
        code = round_shift(conversion, pattern, mantissa)
        code = code if code <= largest else beyond
        return np.uint8(nan_code if magnitude > infinity else code)

    return encode


def _codebook_encoder(conversion: Conversion, source: _Source) -> Any:
    # The code is how many borders x has reached. A border is the first number of x's own type that belongs to the upper
    # of two neighbours: where the midpoint is a number of that type, the tie rule has decided already.
    fmt = conversion.format
    uint, real = source.unsigned, source.real
    infinity = uint((2 * source.bias + 1) << source.mantissa_bits)
    absolute = uint((1 << (8 * uint().itemsize - 1)) - 1)
    nan_code = np.uint8(fmt.nan_input_code)
    found = borders(fmt, conversion.rounding, real)
    # halved from the top, the table filled up to a power of two with a border that no number reaches
    steps = tuple(1 << power for power in reversed(range(fmt.bits)))
    table = np.full(1 << fmt.bits, np.nan, real)
    table[: found.size] = found

    def encode(conversion: Any, bits: Any) -> Any:
        x = uint(bits).view(real)
        code = np.int64(0)
        for step in steps:
            code = code + step if x >= table[code + step - 1] else code
        return nan_code if uint(bits & absolute) > infinity else np.uint8(code)

    return encode


def borders(fmt: ElementFormat, rounding: str, real: Any) -> NDArray[Any]:
    """For each value of a codebook but the first, the smallest number of type `real` that is rounded to it or above.

    Parameters
    ----------
    fmt: a codebook of n values.
    rounding: where a tie goes.
    real: np.float32 or np.float64.

    Returns
    -------
    The borders, ascending, of dtype `real` and shape (n - 1,).
    """
    found = []
    for lower, (a, b) in enumerate(pairwise(map(Fraction, fmt.table))):
        middle = (a + b) / 2
        up = {
            "nearest_up": True,
            "nearest_down": False,
            "nearest_even": lower % 2 == 1,
            "nearest_away": middle >= 0,
            "nearest_toward_zero": middle < 0,
        }[rounding]
        near = real(float(middle))
        if Fraction(float(near)) < middle or (Fraction(float(near)) == middle and not up):
            near = np.nextafter(near, real(np.inf))
        below = np.nextafter(near, real(-np.inf))  # the cast may have rounded up twice
        found.append(below if Fraction(float(below)) > middle else near)
    return np.array(found, real)


@compiled
def _encode_all(conversion: Any, bits: Any, codes: Any) -> None:
    for i in range(bits.size):
        codes[i] = encode_bits(conversion, bits[i])


@compiled
def _decode_all(table: Any, codes: Any, values: Any) -> None:
    for i in range(codes.size):
        values[i] = table[codes[i]]


def conversion(fmt: str | ElementFormat, overflow: str = "saturate", rounding: str | None = None) -> Conversion:
    """The checked policy of an encode. Raises InputError for an unknown format or a rounding that it does not know."""
    target = element(fmt)
    if overflow not in ("saturate", "ieee"):
        raise unknown_name("overflow policy", overflow, ("saturate", "ieee"))
    if rounding is None:
        if target.rounding_required:
            raise InputError(f"{target.name} needs a rounding by name: {', '.join(target.roundings)}")
        rounding = target.roundings[0]
    if rounding not in target.roundings:
        raise InputError(f"{target.name} knows the rounding {', '.join(target.roundings)}; got {rounding!r}")
    return Conversion(target, cast("Overflow", overflow), rounding)


def encode(
    x: ArrayLike, fmt: str | ElementFormat, *, overflow: str = "saturate", rounding: str | None = None
) -> NDArray[Any]:
    """Encode numbers: round to nearest, ties to the even code, subnormals kept, in ONE rounding from x's own precision.

    Overflow and Inf saturate with their sign (`overflow="saturate"`) or give the format's Inf or NaN (`"ieee"`); a NaN
    gives the one canonical code, sign dropped (integers: 0; e2m1fn: +6, as PTX says); -0 keeps its sign where the
    format has one, and a negative number becomes 0 where there is no sign (uint4, ue4m3). e8m0fnu needs `rounding`:
    `up`, `down` or `nearest_even`. In a codebook a tie goes where its table says.

    x: float32, float16, bfloat16 or float64 of any shape; Python numbers count as float64. Returns codes of x's shape,
    int8 for signed integers, else uint8; codes of fewer than 8 bits one per byte. Raises InputError.
    """
    return encode_by(x, conversion(fmt, overflow, rounding))


def encode_by(x: ArrayLike, how: Conversion) -> NDArray[Any]:
    """`encode` by a policy that is already at hand; recipes know roundings that `encode` does not offer."""
    bits = _bits(x)
    codes = np.empty(bits.shape, np.uint8)
    flat_bits, flat_codes = bits.reshape(-1), codes.reshape(-1)
    kernel = static(how)
    threads.over(bits.size, bits.size, lambda a, b: _encode_all(kernel, flat_bits[a:b], flat_codes[a:b]))
    return typed(codes, how.format)


def typed(patterns: NDArray[np.uint8], fmt: ElementFormat) -> NDArray[Any]:
    """Bit patterns, uint8, as codes: sign-extended to int8 for signed integers (int4 0xF is -1), else as they are."""
    if not fmt.signed_integer:
        return patterns
    if fmt.bits == 8:
        return patterns.view(np.int8)  # no pass over the codes: it takes 3 times as long as making them
    spare = 8 - fmt.bits
    codes: NDArray[np.int8] = (patterns.reshape(-1) << spare).view(np.int8) >> spare
    return codes.reshape(patterns.shape)


def decode(codes: ArrayLike, fmt: str | ElementFormat, dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """The value of each code: exact in float32, then rounded once (to nearest even) to `dtype`.

    codes: uint8 (int8 or uint8 patterns for signed integers), any shape, one per byte. dtype: float32,
    float16, bfloat16 or float64. NaN and Inf codes give NaN and Inf. Raises InputError for a code the format lacks.
    """
    target = element(fmt)
    patterns = _patterns(codes, target)
    out = float_dtype(dtype)
    values = np.empty(patterns.shape, np.float32)
    flat_codes, flat_values = patterns.reshape(-1), values.reshape(-1)
    table = target.values()
    threads.over(patterns.size, patterns.size, lambda a, b: _decode_all(table, flat_codes[a:b], flat_values[a:b]))
    with np.errstate(over="ignore"):  # e8m0fnu 2^127 is Inf in float16
        return values if out == np.float32 else values.astype(out)


def native(x: ArrayLike, what: str = "x") -> NDArray[Any]:
    """The array in native byte order; a big-endian one is converted exactly, never misread."""
    try:
        array: NDArray[Any] = np.asarray(x)
    except (TypeError, ValueError) as error:  # rows of different lengths, objects that are no numbers
        raise InputError(f"{what} is no array: {str(error).splitlines()[0]}") from None
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _bits(x: ArrayLike) -> NDArray[Any]:
    array = native(x)
    if not isinstance(x, np.ndarray | np.generic) and array.dtype.kind in "iu":
        exact = array.astype(np.float64)  # Python integers; an exact float64 or refused
        if not np.array_equal(exact.astype(object), array.astype(object)):
            raise InputError("an integer beyond 2**53 has no exact float64; pass floats")
        array = exact
    if array.dtype in (np.float16, ml_dtypes.bfloat16):
        array = array.astype(np.float32)
    if array.dtype == np.float32:
        return np.ascontiguousarray(array).view(np.uint32).reshape(array.shape)
    if array.dtype == np.float64:
        return np.ascontiguousarray(array).view(np.uint64).reshape(array.shape)
    raise InputError(f"x must be {_WIDE_KINDS}; got {array.dtype}")


def _patterns(codes: ArrayLike, fmt: ElementFormat) -> NDArray[np.uint8]:
    array: NDArray[Any] = np.asarray(codes)
    if not isinstance(codes, np.ndarray | np.generic) and array.dtype.kind in "iu":
        low = -(fmt.codes // 2) if fmt.signed_integer else 0
        if array.size and (int(array.min()) < low or int(array.max()) >= fmt.codes):
            raise InputError(f"{fmt.name} has codes {low}..{fmt.codes - 1}; got {array.min()}..{array.max()}")
        array = (array & (fmt.codes - 1)).astype(np.uint8)
    if array.dtype == np.int8 and fmt.signed_integer:
        spare = 8 - fmt.bits
        if spare and np.any(array << spare >> spare != array):
            raise InputError(f"{fmt.name} has codes {-fmt.codes // 2}..{fmt.codes // 2 - 1}; got others")
        array = array.view(np.uint8) & np.uint8(fmt.codes - 1)
    if array.dtype != np.uint8:
        wanted = "int8 or uint8" if fmt.signed_integer else "uint8"
        raise InputError(f"codes of {fmt.name} are {wanted}; got {array.dtype}")
    if fmt.bits < 8 and array.size and int(array.max()) >= fmt.codes:
        raise InputError(f"{fmt.name} has patterns 0..{fmt.codes - 1}, one per byte; got {array.max()} (packed?)")
    return np.ascontiguousarray(array).reshape(array.shape)


def float_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """The dtype that values are to come in. Raises InputError for one that is no float of 16, 32 or 64 bits."""
    try:
        out: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise InputError(f"values come as {_WIDE_KINDS}; got {dtype!r}") from None
    if out not in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16):
        raise InputError(f"values come as {_WIDE_KINDS}; got {out}")
    return out
