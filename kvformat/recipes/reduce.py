"""Reads the input: widens float16 and bfloat16 exactly, and reduces a group of elements to what makes its scale."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvformat.elements.static import inlined, specialised


class _Input(NamedTuple):
    unsigned: Any
    #: |x| as a signed integer: patterns of magnitudes are ordered like the numbers, and LLVM vectorizes a running
    #: maximum over int16 (19 G elements/s) but not over uint16 (2 G/s)
    signed: Any
    absolute: int
    infinity: int


_INPUTS = {
    "float32": _Input(np.uint32, np.int32, 0x7FFF_FFFF, 0b0_11111111_00000000000000000000000),
    "bfloat16": _Input(np.uint16, np.int16, 0x7FFF, 0b0_11111111_0000000),
    "float16": _Input(np.uint16, np.int16, 0x7FFF, 0b0_11111_0000000000),
}


@inlined
def _float_of(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)


@inlined
def _widen_bfloat16(bits: Any) -> Any:
    return _float_of(np.uint32(bits) << np.uint32(16))


@inlined
def _widen_float16(bits: Any) -> Any:
    magnitude = np.uint32(np.uint32(bits & np.uint16(0x7FFF)) << np.uint32(13))
    sign = np.uint32(np.uint32(bits & np.uint16(0x8000)) << np.uint32(16))
    # Rebias the exponent by 127 - 15 = 112, Inf and NaN by twice that. A subnormal (exponent field 0) read with the
    # exponent of 2^-14 is 2^-14 too large; the subtraction is exact and never meets a float32 subnormal.
    rebias = np.uint32(224 << 23) if magnitude >= np.uint32(0x1F << 23) else np.uint32(112 << 23)
    normal = _float_of(magnitude + rebias)
    small = _float_of(magnitude + np.uint32(113 << 23)) - np.float32(2.0**-14)
    size = normal if magnitude >= np.uint32(1 << 23) else small
    return _float_of(sign | np.float32(size).view(np.uint32))


WIDENERS = {"float32": _float_of, "bfloat16": _widen_bfloat16, "float16": _widen_float16}


def reduce_group(plan: Any, bits: Any, count: Any) -> Any:
    """A plan's reductions over `bits`, the `count` elements that share a scale: a tuple of float32, flags as 0 or 1."""
    raise NotImplementedError("compiled code only")


@specialised(reduce_group)
def _reduce_group(plan: Any, bits: Any, count: Any) -> Any:
    wanted = plan.value
    source, widen = _INPUTS[wanted.dtype], WIDENERS[wanted.dtype]
    signed, unsigned = source.signed, source.unsigned
    absolute, infinity = unsigned(source.absolute), signed(source.infinity)
    zero, nan = signed(0), np.float32("nan")

    readings = {
        "amax_finite": lambda finite, number, top: widen(unsigned(finite)),
        "amax_number": lambda finite, number, top: widen(unsigned(max(number, zero))),
        "amax": lambda finite, number, top: nan if top > infinity else widen(unsigned(top)),
        "any_nan": lambda finite, number, top: np.float32(top > infinity),
        "all_nan": lambda finite, number, top: np.float32(number < zero),
    }
    signed_extremes = any(operation.word in _EXTREMES for operation in wanted.reductions)
    collect: Any = inlined(lambda finite, number, top, ends, bits, count: ())
    for operation in wanted.reductions:
        if operation.word in _PASSES:
            reading = _of_elements(_PASSES[operation.word](widen, *operation.attributes))
        else:
            reading = _EXTREMES.get(operation.word) or _of_magnitudes(readings[operation.word])
        collect = _collect(collect, inlined(reading))

    def reduce(plan: Any, bits: Any, count: Any) -> Any:
        top = zero
        for i in range(count):
            top = max(top, signed(bits[i] & absolute))
        finite, number = top, top
        if top >= infinity:  # rare: a second look, at what is not NaN and what is finite
            finite, number = zero, signed(-1)  # -1: nothing but NaN
            for i in range(count):
                magnitude = signed(bits[i] & absolute)
                finite = magnitude if finite < magnitude < infinity else finite
                number = magnitude if number < magnitude <= infinity else number
        return collect(finite, number, top, ends(bits, count), bits, count)

    def both_ends(bits: Any, count: Any) -> Any:
        largest, smallest = -np.float32(np.inf), np.float32(np.inf)
        for i in range(count):
            x = widen(bits[i])
            largest = x if x > largest else largest  # false for NaN  # noqa: FURB136
            smallest = x if x < smallest else smallest  # noqa: FURB136
        # the sum with +0 makes a zero +0
        none = largest < smallest
        return (np.float32(0), np.float32(0)) if none else (largest + np.float32(0), smallest + np.float32(0))

    ends = inlined(both_ends if signed_extremes else lambda bits, count: (np.float32(0), np.float32(0)))
    return reduce


#: the words that read x with its sign; they cost a loop of their own
_EXTREMES = {
    "largest": lambda finite, number, top, ends, bits, count: ends[0],
    "smallest": lambda finite, number, top, ends, bits, count: ends[1],
}


def _of_magnitudes(reading: Any) -> Any:
    read = inlined(reading)
    return lambda finite, number, top, ends, bits, count: read(finite, number, top)


def _of_elements(reading: Any) -> Any:
    read = inlined(reading)
    return lambda finite, number, top, ends, bits, count: read(bits, count)


def _signed_amax(widen: Any) -> Any:
    def signed_amax(bits: Any, count: Any) -> Any:
        size, found = np.float32(0), np.float32(0)
        for i in range(count):
            x = widen(bits[i])
            found = x if np.abs(x) > size else found
            size = np.abs(found)
        return found

    return signed_amax


def _max_from(widen: Any, start: str) -> Any:
    first = np.float32(start)

    def max_from(bits: Any, count: Any) -> Any:
        found = first
        for i in range(count):
            x = widen(bits[i])
            found = x if x > found else found  # noqa: FURB136 false for NaN
        return found

    return max_from


def _min_from(widen: Any, start: str) -> Any:
    first = np.float32(start)

    def min_from(bits: Any, count: Any) -> Any:
        found = first
        for i in range(count):
            x = widen(bits[i])
            found = x if x < found else found  # noqa: FURB136 false for NaN
        return found

    return min_from


def _sum_of(term: Any) -> Any:
    def make(widen: Any, order: str) -> Any:
        lanes = 1 if order == "sequential" else int(order.removeprefix("lanes_"))
        return _tree(widen, inlined(term), 0, 1, lanes)

    return make


def _tree(widen: Any, term: Any, lane: int, width: int, lanes: int) -> Any:
    """The sum of the lanes that meet in `lane` when `width` sums are left."""
    if width == lanes:

        def running(bits: Any, count: Any) -> Any:
            total = np.float32(0)
            for i in range(lane, count, lanes):
                total += term(widen(bits[i]))
            return total

        return inlined(running)
    low, high = (_tree(widen, term, lane + more, 2 * width, lanes) for more in (0, width))
    return inlined(lambda bits, count: low(bits, count) + high(bits, count))


#: the words that go through the elements in order, in a loop of their own
_PASSES: dict[str, Any] = {
    "signed_amax": _signed_amax,
    "max_from": _max_from,
    "min_from": _min_from,
    "sum": _sum_of(lambda x: x),
    "sum_squares": _sum_of(lambda x: np.float32(x * x)),
}


def _collect(collect: Any, reading: Any) -> Any:
    return inlined(
        lambda finite, number, top, ends, bits, count: (
            *collect(finite, number, top, ends, bits, count),
            reading(finite, number, top, ends, bits, count),
        )
    )
