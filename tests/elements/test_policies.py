"""Where a format has no answer: overflow, Inf, NaN, the sign of zero, the roundings of e8m0fnu. All by hand."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from tests.elements.domains import ALL, BFLOAT16, FLOATS, ROUNDINGS, all_halves

INF, NAN = np.inf, np.nan

#: format, input, code under "saturate", code under "ieee"
OVERFLOW = [
    ("e4m3fn", 448.0, 0x7E, 0x7E),
    ("e4m3fn", 464.0, 0x7E, 0x7E),  # the tie with what would be 480 goes to the even code
    ("e4m3fn", 464.00003, 0x7E, 0x7F),
    ("e4m3fn", 465.0, 0x7E, 0x7F),
    ("e4m3fn", -465.0, 0xFE, 0xFF),
    ("e4m3fn", 1e30, 0x7E, 0x7F),
    ("e4m3fn", INF, 0x7E, 0x7F),
    ("e4m3fn", -INF, 0xFE, 0xFF),
    ("e5m2", 61439.996, 0x7B, 0x7B),
    ("e5m2", 61440.0, 0x7B, 0x7C),
    ("e5m2", -61440.0, 0xFB, 0xFC),
    ("e5m2", INF, 0x7B, 0x7C),
    ("e5m2", -INF, 0xFB, 0xFC),
    ("e4m3fnuz", 247.99998, 0x7F, 0x7F),
    ("e4m3fnuz", 248.0, 0x7F, 0x80),
    ("e4m3fnuz", -248.0, 0xFF, 0x80),
    ("e4m3fnuz", INF, 0x7F, 0x80),
    ("e4m3fnuz", -INF, 0xFF, 0x80),
    ("e5m2fnuz", 61439.996, 0x7F, 0x7F),
    ("e5m2fnuz", 61440.0, 0x7F, 0x80),
    ("e5m2fnuz", -61440.0, 0xFF, 0x80),
    ("e5m2fnuz", -INF, 0xFF, 0x80),
    ("e2m1fn", 6.0, 0x7, 0x7),
    ("e2m1fn", 7.0, 0x7, 0x7),
    ("e2m1fn", 1e30, 0x7, 0x7),
    ("e2m1fn", INF, 0x7, 0x7),
    ("e2m1fn", -INF, 0xF, 0xF),
    ("int8", 127.5, 127, 127),
    ("int8", 128.0, 127, 127),
    ("int8", 1e30, 127, 127),
    ("int8", INF, 127, 127),
    ("int8", -128.0, -128, -128),
    ("int8", -128.5, -128, -128),
    ("int8", -1e30, -128, -128),
    ("int8", -INF, -128, -128),
    ("int4", 7.5, 7, 7),
    ("int4", INF, 7, 7),
    ("int4", -8.5, -8, -8),
    ("int4", -9.0, -8, -8),
    ("int4", -INF, -8, -8),
]

NAN_CODES = {
    "e4m3fn": 0x7F,
    "e5m2": 0x7F,
    "e4m3fnuz": 0x80,
    "e5m2fnuz": 0x80,
    "e2m1fn": 0x7,
    "e8m0fnu": 0xFF,
    "int8": 0,
    "int4": 0,
}

#: input, then the codes that `up`, `down` and `nearest_even` give: saturate, ieee
E8M0 = [
    (0.0, (0x00, 0x00, 0x00), (0x00, 0x00, 0x00)),
    (2.0**-149, (0x00, 0x00, 0x00), (0x00, 0x00, 0x00)),
    (2.0**-128, (0x00, 0x00, 0x00), (0x00, 0x00, 0x00)),
    (2.0**-127, (0x00, 0x00, 0x00), (0x00, 0x00, 0x00)),
    (2.0**-127 + 2.0**-149, (0x01, 0x00, 0x00), (0x01, 0x00, 0x00)),
    (1.5 * 2.0**-127, (0x01, 0x00, 0x00), (0x01, 0x00, 0x00)),  # a tie, 0 is even
    (2.0**-126, (0x01, 0x01, 0x01), (0x01, 0x01, 0x01)),
    (1.5 * 2.0**-126, (0x02, 0x01, 0x02), (0x02, 0x01, 0x02)),  # a tie, 2 is even
    (1.0, (0x7F, 0x7F, 0x7F), (0x7F, 0x7F, 0x7F)),
    (1.25, (0x80, 0x7F, 0x7F), (0x80, 0x7F, 0x7F)),
    (1.4999999, (0x80, 0x7F, 0x7F), (0x80, 0x7F, 0x7F)),
    (1.5, (0x80, 0x7F, 0x80), (0x80, 0x7F, 0x80)),
    (3.0, (0x81, 0x80, 0x80), (0x81, 0x80, 0x80)),  # ml_dtypes and torch give 0x81
    (3.0000002, (0x81, 0x80, 0x81), (0x81, 0x80, 0x81)),
    (2.0**127, (0xFE, 0xFE, 0xFE), (0xFE, 0xFE, 0xFE)),
    (1.25 * 2.0**127, (0xFE, 0xFE, 0xFE), (0xFF, 0xFE, 0xFE)),
    (1.5 * 2.0**127, (0xFE, 0xFE, 0xFE), (0xFF, 0xFE, 0xFE)),  # a tie, 0xFE is even
    (1.75 * 2.0**127, (0xFE, 0xFE, 0xFE), (0xFF, 0xFE, 0xFF)),
    (INF, (0xFE, 0xFE, 0xFE), (0xFF, 0xFF, 0xFF)),
    (NAN, (0xFF, 0xFF, 0xFF), (0xFF, 0xFF, 0xFF)),
]
_E8M0_ORDER = ("up", "down", "nearest_even")


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name, x, saturated, ieee", OVERFLOW)
def test_overflow_is_judged_after_rounding_and_keeps_its_sign(name, x, saturated, ieee, dtype):
    x = np.float32(x).astype(dtype)
    assert kvf.encode(x, name) == saturated
    assert kvf.encode(x, name, overflow="saturate") == saturated
    assert kvf.encode(x, name, overflow="ieee") == ieee


@pytest.mark.parametrize("overflow", ["saturate", "ieee"])
@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_every_nan_pattern_gives_the_one_canonical_code(name, dtype, overflow):
    x = all_halves(dtype)
    infinity = 0x7C00 if dtype == np.float16 else 0x7F80
    x = x[(np.arange(1 << 16) & 0x7FFF) > infinity]  # both signs, every payload, signalling ones too
    assert len(x) == 2 * (0x7FFF - infinity)
    codes = kvf.encode(x, name, overflow=overflow, rounding="nearest_even")
    assert set(codes.tolist()) == {NAN_CODES[name]}


@pytest.mark.parametrize("bits", [0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0xFFC00000, 0xFFFFFFFF])
@pytest.mark.parametrize("name", ALL)
def test_nan_of_float32_drops_its_sign_and_its_payload(name, bits):
    x = np.array([bits], np.uint32).view(np.float32)
    assert kvf.encode(x, name, rounding="nearest_even")[0] == NAN_CODES[name]


@pytest.mark.parametrize("bits", [0x7FF0000000000001, 0x7FF8000000000000, 0xFFF0000000000001, 0xFFFFFFFFFFFFFFFF])
@pytest.mark.parametrize("name", ALL)
def test_nan_of_float64_drops_its_sign_and_its_payload(name, bits):
    x = np.array([bits], np.uint64).view(np.float64)
    assert kvf.encode(x, name, rounding="nearest_even")[0] == NAN_CODES[name]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("index, rounding", list(enumerate(_E8M0_ORDER)))
@pytest.mark.parametrize("x, saturated, ieee", E8M0)
def test_e8m0fnu_rounds_as_named_and_ignores_the_sign(x, saturated, ieee, index, rounding, dtype):
    x = np.float32(x).astype(dtype)
    for value in (x, -x):
        assert kvf.encode(value, "e8m0fnu", rounding=rounding) == saturated[index]
        assert kvf.encode(value, "e8m0fnu", rounding=rounding, overflow="ieee") == ieee[index]


def test_e8m0fnu_of_float64_beyond_float32():
    x = np.array([2.0**-1074, 2.0**-200, 2.0**200, 1e308])
    for rounding in ROUNDINGS:
        assert kvf.encode(x, "e8m0fnu", rounding=rounding).tolist() == [0, 0, 0xFE, 0xFE]
        assert kvf.encode(x, "e8m0fnu", rounding=rounding, overflow="ieee").tolist() == [0, 0, 0xFF, 0xFF]


def test_e8m0fnu_without_a_rounding_is_refused():
    with pytest.raises(kvf.InputError, match="e8m0fnu needs a rounding by name: nearest_even, up, down"):
        kvf.encode(1.0, "e8m0fnu")


@pytest.mark.parametrize("rounding", ["up", "down", "nearest", "stochastic"])
@pytest.mark.parametrize("name", [*FLOATS, "int8", "int4"])
def test_other_formats_know_nearest_even_only(name, rounding):
    with pytest.raises(kvf.InputError, match=f"{name} knows the rounding nearest_even; got '{rounding}'"):
        kvf.encode(1.0, name, rounding=rounding)


@pytest.mark.parametrize("name", [*FLOATS, "int8", "int4"])
def test_nearest_even_may_be_named(name):
    x = np.linspace(-9, 9, 101, dtype=np.float32)
    np.testing.assert_array_equal(kvf.encode(x, name, rounding="nearest_even"), kvf.encode(x, name))


@pytest.mark.parametrize("overflow", ["nan", "SATURATE", "wrap", None])
def test_unknown_overflow_policy_names_the_known_ones(overflow):
    with pytest.raises(kvf.InputError, match="unknown overflow policy") as error:
        kvf.encode(1.0, "e4m3fn", overflow=overflow)
    assert "saturate" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "x, code",
    [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (-2.5, -2), (0.49999997, 0), (126.5, 126), (-127.5, -128)],
)
def test_int8_ties_go_to_the_even_integer(x, code):
    assert kvf.encode(np.float32(x), "int8") == code
