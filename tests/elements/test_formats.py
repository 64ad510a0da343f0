"""What each code means: limits by hand, every value by three authorities."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import NamedTuple

import numpy as np
import pytest

import kvformat as kvf
from kvformat.elements import exact
from kvformat.elements.formats import ELEMENTS
from tests.elements.compare import assert_same_values
from tests.elements.domains import ALL, INTEGERS, ML_DTYPES, ladder


class Limits(NamedTuple):
    """What the format's own specification says of it, typed in by hand."""

    bits: int
    max: float
    max_code: int
    min_normal: float
    min_subnormal: float
    zeros: tuple[int, ...]
    infinities: tuple[int, ...]
    nans: tuple[int, ...]


LIMITS = {
    "e4m3fn": Limits(8, 448.0, 0x7E, 2.0**-6, 2.0**-9, (0x00, 0x80), (), (0x7F, 0xFF)),
    "e5m2": Limits(
        8, 57344.0, 0x7B, 2.0**-14, 2.0**-16, (0x00, 0x80), (0x7C, 0xFC), (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF)
    ),
    "e4m3fnuz": Limits(8, 240.0, 0x7F, 2.0**-7, 2.0**-10, (0x00,), (), (0x80,)),
    "e5m2fnuz": Limits(8, 57344.0, 0x7F, 2.0**-15, 2.0**-17, (0x00,), (), (0x80,)),
    "e2m1fn": Limits(4, 6.0, 0x7, 1.0, 0.5, (0x0, 0x8), (), ()),
    "e8m0fnu": Limits(8, 2.0**127, 0xFE, 2.0**-127, 2.0**-127, (), (), (0xFF,)),
    "int8": Limits(8, 127.0, 0x7F, 1.0, 1.0, (0x00,), (), ()),
    "int4": Limits(4, 7.0, 0x7, 1.0, 1.0, (0x0,), (), ()),
}

#: single values by hand, several of them from bug reports
VALUES = [
    ("e4m3fn", 0x01, 0.001953125),
    ("e4m3fn", 0x07, 0.013671875),
    ("e4m3fn", 0x08, 0.015625),
    ("e4m3fn", 0x38, 1.0),
    ("e4m3fn", 0x39, 1.125),
    ("e4m3fn", 0x78, 256.0),
    ("e4m3fn", 0x79, 288.0),
    ("e4m3fn", 0xFE, -448.0),
    ("e4m3fn", 0x80, -0.0),
    ("e4m3fnuz", 0x38, 0.5),
    ("e4m3fnuz", 0x40, 1.0),
    ("e4m3fnuz", 0x80, math.nan),
    ("e4m3fnuz", 0xFF, -240.0),
    ("e5m2", 0x3C, 1.0),
    ("e5m2", 0x7C, math.inf),
    ("e5m2", 0xFC, -math.inf),
    ("e5m2", 0x80, -0.0),
    ("e5m2fnuz", 0x40, 1.0),
    ("e5m2fnuz", 0x80, math.nan),
    ("e2m1fn", 0x8, -0.0),
    ("e2m1fn", 0xF, -6.0),
    ("e8m0fnu", 0x00, 2.0**-127),
    ("e8m0fnu", 0x7F, 1.0),
    ("e8m0fnu", 0x86, 128.0),
    ("int8", 0x80, -128.0),
    ("int8", 0xFF, -1.0),
    ("int4", 0x8, -8.0),
    ("int4", 0xF, -1.0),
]


def _patterns(name):
    return np.arange(kvf.element(name).codes, dtype=np.uint8)


def _by_hand(name):
    """Every value from the ladder of magnitudes and the table of limits."""
    limits, steps = LIMITS[name], ladder(name)
    if name == "e8m0fnu":
        return [*map(float, steps[:255]), math.nan]
    half = 2 ** (limits.bits - 1)
    if name in INTEGERS:
        return [float(code if code < half else code - 2 * half) for code in range(2 * half)]
    values = []
    for code in range(2 * half):
        sign = -1.0 if code >= half else 1.0
        if code in limits.nans:
            values.append(math.nan)
        elif code in limits.infinities:
            values.append(sign * math.inf)
        else:
            values.append(sign * float(steps[code % half]))
    return values


def test_every_format_of_the_table_of_limits_is_there():
    assert set(LIMITS) == set(ALL) <= set(ELEMENTS)


@pytest.mark.parametrize("name", ALL)
def test_limits_are_those_of_the_table(name):
    fmt, limits = kvf.element(name), LIMITS[name]
    assert (fmt.bits, fmt.codes) == (limits.bits, 2**limits.bits)
    assert (fmt.max, fmt.max_code) == (limits.max, limits.max_code)
    assert (fmt.min_normal, fmt.min_subnormal) == (limits.min_normal, limits.min_subnormal)
    assert set(fmt.nan_codes) == set(limits.nans)
    assert set(fmt.inf_codes) == set(limits.infinities)
    assert fmt.has_negative_zero == (len(limits.zeros) == 2)
    assert fmt.code_dtype == ("int8" if name in INTEGERS else "uint8")


@pytest.mark.parametrize("name", ALL)
def test_zero_infinity_and_nan_are_where_the_table_has_them(name):
    values, limits = kvf.decode(_patterns(name), name), LIMITS[name]
    assert tuple(np.flatnonzero(values == 0)) == limits.zeros
    assert tuple(np.flatnonzero(np.isinf(values))) == limits.infinities
    assert tuple(np.flatnonzero(np.isnan(values))) == limits.nans


@pytest.mark.parametrize("name", ALL)
def test_every_code_decodes_to_the_value_by_hand(name):
    expected = np.array(_by_hand(name), np.float32)
    assert_same_values(kvf.decode(_patterns(name), name), expected)
    assert_same_values(kvf.element(name).values(), expected)
    assert_same_values(
        np.array([kvf.element(name).value(int(code)) for code in _patterns(name)]), expected.astype(float)
    )


@pytest.mark.parametrize("name", ALL)
def test_every_code_decodes_to_the_value_of_the_exact_twin(name):
    expected = np.array([float(exact.decode(int(code), name)) for code in _patterns(name)], np.float32)
    assert_same_values(kvf.decode(_patterns(name), name), expected)


@pytest.mark.parametrize("name", ML_DTYPES)
def test_every_code_decodes_to_the_value_of_ml_dtypes(name):
    patterns = _patterns(name)
    assert_same_values(kvf.decode(patterns, name), patterns.view(ML_DTYPES[name]).astype(np.float32))


@pytest.mark.parametrize("name, code, value", VALUES)
def test_single_values_are_those_computed_by_hand(name, code, value):
    assert_same_values(kvf.decode(np.uint8(code), name), np.array(value, np.float32))


def test_e2m1fn_has_its_eight_magnitudes():
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    expected = np.array([*magnitudes, *(-m for m in magnitudes)], np.float32)
    assert_same_values(kvf.decode(np.arange(16, dtype=np.uint8), "e2m1fn"), expected)


@pytest.mark.parametrize("name", ALL)
def test_exact_twin_tells_signed_zero_infinity_and_nan_apart(name):
    limits = LIMITS[name]
    for code in map(int, _patterns(name)):
        value = exact.decode(code, name)
        assert value.nan == (code in limits.nans)
        assert value.finite == (code not in limits.nans + limits.infinities)
        if code in limits.zeros:
            assert value.magnitude == 0
            assert value.negative == (code != 0)


def test_value_table_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        kvf.element("e4m3fn").values()[0] = 1


def test_format_is_frozen_and_found_by_itself():
    fmt = kvf.element("e4m3fn")
    assert kvf.element(fmt) is fmt
    with pytest.raises(dataclasses.FrozenInstanceError):
        fmt.bits = 4


@pytest.mark.parametrize("code", [-1, 256])
def test_value_of_a_code_that_is_not_there_is_refused(code):
    with pytest.raises(ValueError, match=f"e4m3fn has no code {code}; its codes are 0..255"):
        kvf.element("e4m3fn").value(code)


@pytest.mark.parametrize(
    "name, hint",
    [
        ("e4m3f", "did you mean e4m3fn"),
        ("fp4", "the closest of"),
        ("float8_e5m2", "e5m2"),
        ("INT8", "are int8"),
        (8, "are int8"),
    ],
)
def test_unknown_format_is_one_line_that_names_others(name, hint):
    with pytest.raises(kvf.InputError, match="unknown element format") as error:
        kvf.element(name)
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_decode_is_exact_in_every_dtype_that_has_the_range(name, dtype):
    # 8 significant bits and an exponent of 8 bits are enough for every value of every format
    values = kvf.decode(_patterns(name), name, dtype=dtype)
    assert values.dtype == np.dtype(dtype)
    assert_same_values(values.astype(np.float64), np.array(_by_hand(name)))


@pytest.mark.parametrize("name", ALL)
def test_decode_to_float16_rounds_once_to_nearest_even(name):
    def half(value):
        try:
            return struct.unpack("<e", struct.pack("<e", value))[0]  # Python's own rounding
        except OverflowError:
            return math.copysign(math.inf, value)

    expected = np.array([half(value) for value in _by_hand(name)], np.float16)
    assert_same_values(kvf.decode(_patterns(name), name, dtype=np.float16), expected)
