"""What is worth saying about each element format, each statement with the computation that checks it."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from kvformat.elements import exact
from kvformat.elements.codec import decode
from kvformat.elements.exact import Number
from kvformat.elements.formats import ElementFormat, element
from kvformat.elements.packing import pack_bits, pack_nibbles, unpack_nibbles
from spec_pages.text import Statement

_MINUS_ZERO = Number(negative=True, magnitude=Fraction(0))


def _values(name: str, codes: range | tuple[int, ...]) -> list[Number]:
    return [exact.decode(code, name) for code in codes]


def _encodes(name: str, expected: dict[float, int], overflow: str = "saturate", rounding: str = "nearest_even") -> bool:
    return all(exact.encode(x, name, overflow=overflow, rounding=rounding) == code for x, code in expected.items())


def _is_half_of(narrow: str, wide: str, codes: list[int]) -> bool:
    return all(2 * exact.decode(code, narrow).value == exact.decode(code, wide).value for code in codes)


def _float16(code: int) -> float:
    return float(struct.unpack("<e", struct.pack("<H", code << 8))[0])


def _same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


def _shifted(code: int) -> float:
    return float(struct.unpack("<f", struct.pack("<I", code << 23))[0])


_E4M3FN = (
    Statement(
        "464 is halfway between 448 and the 480 that does not exist. The tie goes to the even code, which is 448: "
        '`overflow="ieee"` gives NaN above 464, not from 464 on. 465 is the first integer that becomes NaN.',
        lambda: _encodes("e4m3fn", {464.0: 0x7E, 465.0: 0x7F}, "ieee"),
    ),
    Statement(
        "The smallest positive value is 2^-9 (`0x01`). 2^-6 is the smallest normal value (`0x08`); "
        "seven subnormals lie below it.",
        lambda: (
            exact.decode(1, "e4m3fn").value == Fraction(1, 512)
            and exact.decode(8, "e4m3fn").value == Fraction(1, 64)
            and all(0 < value.value < Fraction(1, 64) for value in _values("e4m3fn", range(1, 8)))
        ),
    ),
    Statement(
        "Not every pattern with an exponent field of all ones is special: `0x78` .. `0x7E` are 256 .. 448, `0x7F` "
        "alone is NaN.",
        lambda: (
            [float(value) for value in _values("e4m3fn", range(0x78, 0x7F))] == [256, 288, 320, 352, 384, 416, 448]
            and exact.decode(0x7F, "e4m3fn").nan
        ),
    ),
    Statement(
        "Read as [e4m3fnuz](e4m3fnuz.md), a byte means half of what it means here. Three bytes do not follow: "
        "`0x80` (-0 here, NaN there), `0x7F` and `0xFF` (NaN here, 240 and -240 there).",
        lambda: (
            _is_half_of("e4m3fnuz", "e4m3fn", [code for code in range(256) if code not in (0x7F, 0x80, 0xFF)])
            and exact.decode(0x80, "e4m3fnuz").nan
            and [float(value) for value in _values("e4m3fnuz", (0x7F, 0xFF))] == [240, -240]
        ),
    ),
    Statement(
        "A NaN becomes `0x7F` whatever its sign. `0xFF` is a NaN too when it is read; compare NaN codes as a class.",
        lambda: exact.encode(math.nan, "e4m3fn") == 0x7F and exact.decode(0xFF, "e4m3fn").nan,
    ),
    Statement(
        "Rounding a float64 to float32 first is a second rounding: 1.0625 + 2^-40 is `0x39` in one rounding and "
        "`0x38` in two.",
        lambda: (
            exact.encode(1.0625 + 2**-40, "e4m3fn") == 0x39
            and exact.encode(float(np.float32(1.0625 + 2**-40)), "e4m3fn") == 0x38
        ),
    ),
)

_E5M2 = (
    Statement(
        "61440 is halfway between 57344 and the 65536 that does not exist. The largest value has an odd code "
        '(`0x7B`), so the tie leaves the format: `overflow="ieee"` gives Inf from 61440 on, 61440 included. e4m3fn '
        "differs here: its own tie, 464, stays.",
        lambda: _encodes("e5m2", {61440.0: 0x7C, 61439.0: 0x7B}, "ieee"),
    ),
    Statement(
        "The default policy never gives Inf: an Inf input becomes 57344. The Inf codes arise under "
        '`overflow="ieee"` only.',
        lambda: _encodes("e5m2", {math.inf: 0x7B, -math.inf: 0xFB}) and _encodes("e5m2", {math.inf: 0x7C}, "ieee"),
    ),
    Statement(
        "A code is the upper byte of the float16 of the same value, for all 256 codes. Cutting off the lower byte "
        "of a float16 is rounding toward zero, though, not this format's `encode`: float16 1.1875 is `0x3CC0`, cut "
        "`0x3C` = 1, rounded `0x3D` = 1.25.",
        lambda: (
            all(_same(_float16(code), float(exact.decode(code, "e5m2"))) for code in range(256))
            and struct.pack("<e", 1.1875) == b"\xc0\x3c"
            and exact.encode(1.1875, "e5m2") == 0x3D
            and float(exact.decode(0x3C, "e5m2")) == 1
        ),
    ),
    Statement(
        "Six codes are NaN. A NaN input becomes `0x7F` whatever its sign and payload; compare NaN codes as a class.",
        lambda: exact.encode(math.nan, "e5m2") == 0x7F and len(element("e5m2").nan_codes) == 6,
    ),
)

_E4M3FNUZ = (
    Statement(
        "A byte means half of what it means in [e4m3fn](e4m3fn.md). Reading one as the other halves or doubles "
        "every number: a scale that is twice as large makes up for it, but `0x80`, `0x7F` and `0xFF` have to be "
        "looked at.",
        lambda: _is_half_of("e4m3fnuz", "e4m3fn", [code for code in range(256) if code not in (0x7F, 0x80, 0xFF)]),
    ),
    Statement(
        "`0x80` is the NaN, the only one. There is no -0: a negative number that rounds to zero becomes `0x00`.",
        lambda: (
            element("e4m3fnuz").nan_codes == (0x80,)
            and exact.encode(_MINUS_ZERO, "e4m3fnuz") == 0
            and exact.encode(-(2.0**-20), "e4m3fnuz") == 0
        ),
    ),
    Statement(
        "The largest value is 240, not 448. 248 is the tie above it; its even neighbor is past the end, so "
        '`overflow="ieee"` gives NaN from 248 on, 248 included.',
        lambda: (
            exact.decode(0x7F, "e4m3fnuz").value == 240 and _encodes("e4m3fnuz", {248.0: 0x80, 247.0: 0x7F}, "ieee")
        ),
    ),
    Statement(
        "Overflow to NaN has no sign: +Inf and -Inf both become `0x80` under `ieee`.",
        lambda: _encodes("e4m3fnuz", {math.inf: 0x80, -math.inf: 0x80}, "ieee"),
    ),
)

_E5M2FNUZ = (
    Statement(
        "A byte means half of what it means in [e5m2](e5m2.md), for every byte that is finite there but `0x80`.",
        lambda: _is_half_of(
            "e5m2fnuz",
            "e5m2",
            [code for code in range(256) if code != 0x80 and exact.decode(code, "e5m2").finite],
        ),
    ),
    Statement(
        "The largest value is 57344 as in e5m2, under another code: `0x7F` here, `0x7B` there. `0x7C`, Inf in e5m2, "
        "is 32768 here.",
        lambda: (
            [float(value) for value in _values("e5m2fnuz", (0x7F, 0x7C))] == [57344, 32768]
            and exact.decode(0x7B, "e5m2").value == 57344
        ),
    ),
    Statement(
        "`0x80` is the NaN, the only one. There is no -0: a negative number that rounds to zero becomes `0x00`.",
        lambda: element("e5m2fnuz").nan_codes == (0x80,) and exact.encode(_MINUS_ZERO, "e5m2fnuz") == 0,
    ),
    Statement(
        '`overflow="ieee"` gives NaN from 61440 on, 61440 included.',
        lambda: _encodes("e5m2fnuz", {61440.0: 0x80, 61439.0: 0x7F}, "ieee"),
    ),
)

_E2M1FN = (
    Statement(
        "There is no NaN and no Inf. A NaN input becomes `0x7` = 6, positive whatever its sign. A recipe that must "
        "not turn NaN into a number has to see the NaN before this format does: "
        "[golden/nvfp4](../recipes/golden/nvfp4.md) puts it into the block scale.",
        lambda: exact.encode(math.nan, "e2m1fn") == 7 and element("e2m1fn").nan_codes == (),
    ),
    Statement(
        'It saturates under every policy: `overflow="ieee"` changes nothing.',
        lambda: _encodes("e2m1fn", {1e30: 7, math.inf: 7, -math.inf: 15}, "ieee"),
    ),
    Statement(
        "Half of the ties go down and half go up: 0.25 becomes 0 but 0.75 becomes 1, 2.5 becomes 2 but 3.5 becomes 4. "
        "Rounding ties away from zero is wrong at 0.25, 1.25, 2.5 and 5.",
        lambda: (
            [float(exact.decode(exact.encode(x, "e2m1fn"), "e2m1fn")) for x in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)]
            == [0, 1, 1, 2, 2, 4, 4]
        ),
    ),
    Statement(
        "-0 exists (`0x8`), and negative numbers down to -0.25 become it.",
        lambda: exact.encode(-0.25, "e2m1fn") == 8 and exact.encode(_MINUS_ZERO, "e2m1fn") == 8,
    ),
    Statement(
        "Two codes share a byte, the low nibble first: element 2i in bits 0..3, element 2i + 1 in bits 4..7. "
        "Codes `0x1`, `0x2` make the byte `0x21`.",
        lambda: pack_nibbles(np.array([1, 2], np.uint8)).tolist() == [0x21],
    ),
)

_E8M0FNU = (
    Statement(
        "Code 0 is 2^-127, not zero. There is no zero: a zero input becomes `0x00`, which is 2^-127 when it is read.",
        lambda: (
            exact.decode(0, "e8m0fnu").value == Fraction(1, 2**127) and exact.encode(0.0, "e8m0fnu", rounding="up") == 0
        ),
    ),
    Statement(
        "Shifting the code into the exponent field of a float32 (`code << 23`) is right for 1 .. 254 and wrong at "
        "both ends: code 0 would be 0 and is the subnormal 2^-127, code 255 would be Inf and is NaN.",
        lambda: (
            all(_shifted(code) == float(exact.decode(code, "e8m0fnu")) for code in range(1, 255))
            and _shifted(0) == 0
            and _shifted(255) == math.inf
            and exact.decode(255, "e8m0fnu").nan
        ),
    ),
    Statement(
        "There is no default rounding, because there is no usual one. A tie under `nearest_even` goes to the even "
        "code, which is not always the larger one: 1.5 becomes 2 (`0x80`), and 3 becomes 2 as well.",
        lambda: _encodes("e8m0fnu", {1.5: 0x80, 3.0: 0x80}),
    ),
    Statement(
        "The sign is ignored: -4 becomes 4 (`0x81`).",
        lambda: _encodes("e8m0fnu", {-4.0: 0x81, 4.0: 0x81}),
    ),
)

_INT8 = (
    Statement(
        "Ties go to the even integer: 0.5 becomes 0, 1.5 and 2.5 become 2, -2.5 becomes -2. A C cast truncates "
        "instead: it makes 1 of 1.5.",
        lambda: _encodes("int8", {0.5: 0, 1.5: 2, 2.5: 2, -2.5: 0xFE}) and int(1.5) == 1,
    ),
    Statement(
        "-128 is a code, and `encode` uses it. Recipes narrow the range to -127 .. 127: see "
        "[golden/int8_per_token_head](../recipes/golden/int8_per_token_head.md).",
        lambda: _encodes("int8", {-128.0: 0x80, -1000.0: 0x80}),
    ),
    Statement(
        "There is no NaN: a NaN input becomes 0. There is no -0.",
        lambda: exact.encode(math.nan, "int8") == 0 and exact.encode(_MINUS_ZERO, "int8") == 0,
    ),
    Statement(
        'It saturates under every policy: `overflow="ieee"` changes nothing.',
        lambda: _encodes("int8", {128.0: 0x7F, math.inf: 0x7F, -math.inf: 0x80}, "ieee"),
    ),
)

_INT4 = (
    Statement(
        "The range is -8 .. 7, not symmetric: 7.5 and all above become 7, -8.5 and all below -8.",
        lambda: _encodes("int4", {7.5: 7, 100.0: 7, -8.5: 8, -8.0: 8}),
    ),
    Statement(
        "Unpacked codes are signed (-8 .. 7, int8); a packed nibble is the low four bits. Unpacking must extend the "
        "sign again: nibble `0xF` is -1.",
        lambda: (
            pack_nibbles(np.array([-1, 7], np.int8)).tolist() == [0x7F]
            and decode(unpack_nibbles(np.array([0x7F], np.uint8)), "int4").tolist() == [-1, 7]
        ),
    ),
    Statement(
        "There is no NaN: a NaN input becomes 0. There is no -0.",
        lambda: exact.encode(math.nan, "int4") == 0 and exact.encode(_MINUS_ZERO, "int4") == 0,
    ),
)

TRAPS = {
    "e4m3fn": _E4M3FN,
    "e5m2": _E5M2,
    "e4m3fnuz": _E4M3FNUZ,
    "e5m2fnuz": _E5M2FNUZ,
    "e2m1fn": _E2M1FN,
    "e8m0fnu": _E8M0FNU,
    "int8": _INT8,
    "int4": _INT4,
}


def traps_of(fmt: ElementFormat) -> tuple[Statement, ...]:
    """What is worth saying of a format: by hand where somebody did, and what follows from its entry."""
    return TRAPS.get(fmt.name) or tuple(_from_entry(fmt))


def _from_entry(fmt: ElementFormat) -> Iterator[Statement]:
    nan = exact.decode(fmt.nan_input_code, fmt)
    shown = "NaN" if nan.nan else f"{float(nan):g}"
    yield Statement(
        f"A NaN input becomes code 0x{fmt.nan_input_code:0{fmt.digits}X} = {shown}, whatever its sign.",
        lambda: exact.encode(math.nan, fmt) == exact.encode(-math.nan, fmt) == fmt.nan_input_code,
    )
    if fmt.always_saturates:
        yield Statement(
            f"There is nothing to overflow to: both policies saturate, at {fmt.max:g} and at {fmt.lowest:g}.",
            lambda: all(
                exact.decode(exact.encode(x, fmt, overflow=policy), fmt).value == Fraction(end)
                for x, end in ((math.inf, fmt.max), (-math.inf, fmt.lowest))
                for policy in ("saturate", "ieee")
            ),
        )
    if fmt.negatives == "lowest":
        yield Statement(
            "A negative number, -Inf among them, becomes code 0.",
            lambda: exact.encode(-1.0, fmt) == exact.encode(-math.inf, fmt) == exact.encode(-0.0, fmt) == 0,
        )
    if fmt.bits < 8:
        codes = np.arange(8) % fmt.codes
        yield Statement(
            f"Codes are packed LSB first: code i begins at bit {fmt.bits} i, and 8 of them fill {fmt.bits} "
            f"byte{'s' if fmt.bits > 1 else ''}.",
            lambda: (
                int.from_bytes(pack_bits(codes.astype(np.uint8), fmt.bits).tobytes(), "little")
                == sum(int(code) << fmt.bits * place for place, code in enumerate(codes))
            ),
        )
