"""Formats of 1 to 8 bits: integers, floats by their fields and codebooks, each against arithmetic written out here."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import kvformat as kvf
from kvformat.elements import exact, sweep
from kvformat.elements.codec import borders
from kvformat.elements.formats import ELEMENTS, codebook, define, floating
from tests.elements.domains import BFLOAT16, ML_DTYPES, all_halves

SIGNED = [f"int{bits}" for bits in range(1, 9)]
UNSIGNED = [f"uint{bits}" for bits in range(1, 9)]
IN_ML_DTYPES = ["e4m3", "e2m3fn", "e3m2fn"]
FAST = ("int1", "int3", "uint4", "uint8")


def _slow_but(names, fast):
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in names]


def _float32(x):
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32)


@pytest.mark.parametrize("name", _slow_but([*SIGNED, *UNSIGNED], FAST))
def test_an_integer_of_any_width_is_rint_and_clip_on_every_bfloat16(name):
    bits, low = int(name.strip("uint")), 0
    high = 2**bits - 1
    if name in SIGNED:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    x = _float32(all_halves(BFLOAT16))
    with np.errstate(invalid="ignore"):
        expected = np.nan_to_num(np.clip(np.rint(x), low, high), nan=0.0).astype(np.int64)
    codes = kvf.encode(x, name)
    assert codes.dtype == (np.int8 if name in SIGNED else np.uint8)
    np.testing.assert_array_equal(codes, expected)
    values = kvf.decode(np.unique(codes), name)
    np.testing.assert_array_equal(values, np.arange(low, high + 1, dtype=np.float32))


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16])
@pytest.mark.parametrize("name", IN_ML_DTYPES)
def test_new_floats_are_those_of_ml_dtypes_on_every_16_bit_number(name, dtype):
    x = _float32(all_halves(dtype))
    number = ~np.isnan(x)
    limit = np.float32(kvf.element(name).max)
    with np.errstate(invalid="ignore", over="ignore"):
        clipped = np.clip(x, -limit, limit).astype(ML_DTYPES[name]).view(np.uint8)
        plain = x.astype(ML_DTYPES[name]).view(np.uint8)
    np.testing.assert_array_equal(kvf.encode(x, name)[number], clipped[number])
    np.testing.assert_array_equal(kvf.encode(x, name, overflow="ieee")[number], plain[number])


#: by hand: name, code, value; the largest, the smallest and one that no neighbour format shares
VALUES = [
    ("e4m3", 0x77, 240.0),
    ("e4m3", 0x78, np.inf),
    ("e4m3", 0x7C, np.nan),
    ("e4m3", 0xFF, np.nan),
    ("e4b15", 0x7F, 1.875),
    ("e4b15", 0x01, 2.0**-17),
    ("e4b15", 0x78, 1.0),
    ("ue5m3", 0xFE, 114688.0),
    ("ue5m3", 0x78, 1.0),
    ("ue5m3", 0x01, 2.0**-17),
    ("ue5m3", 0xFF, np.nan),
    ("ue4m3", 0x7E, 448.0),
    ("ue4m3", 0x38, 1.0),
    ("ue4m3", 0x7F, np.nan),
    ("e2m3fn", 0x1F, 7.5),
    ("e2m3fn", 0x3F, -7.5),
    ("e2m3fn", 0x01, 0.125),
    ("e3m2fn", 0x1F, 28.0),
    ("e3m2fn", 0x01, 0.0625),
    ("iq4_nl", 0, -127.0),
    ("iq4_nl", 7, -10.0),
    ("iq4_nl", 8, 1.0),
    ("iq4_nl", 15, 113.0),
]


@pytest.mark.parametrize("name, code, value", VALUES)
def test_single_values_are_those_computed_by_hand(name, code, value):
    found = kvf.decode(np.uint8(code), name)
    assert np.array_equal(found, np.float32(value), equal_nan=True)
    if not np.isnan(value) and np.isfinite(value):
        assert kvf.encode(np.float32(value), name) == code


@pytest.mark.parametrize("name", ["ue5m3", "ue4m3", "uint4"])
def test_a_negative_number_becomes_the_lowest_value_of_a_format_without_sign(name):
    x = np.array([-0.0, -(2.0**-149), -1.0, -1e30, -np.inf], np.float32)
    assert not kvf.encode(x, name).any()
    assert not kvf.encode(x, name, overflow="ieee").any()


def test_iq4_nl_searches_as_ggml_does():
    # best_index_int8 of ggml-quants.c, transcribed; ties go up because the lower one must be strictly nearer
    table = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]

    def best_index(x):
        if x <= table[0]:
            return 0
        if x >= table[15]:
            return 15
        low, high = 0, 15
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if x < table[middle] else (middle, high)
        return high - 1 if x - table[high - 1] < table[high] - x else high

    x = np.concatenate([np.arange(-300, 301) / 2, [np.nan, np.inf, -np.inf]]).astype(np.float32)
    expected = [best_index(np.float32(each)) for each in x]
    np.testing.assert_array_equal(kvf.encode(x, "iq4_nl"), expected)
    np.testing.assert_array_equal(kvf.encode(x.astype(np.float64), "iq4_nl"), expected)


@pytest.mark.parametrize("ties", ["nearest_up", "nearest_down", "nearest_even", "nearest_away", "nearest_toward_zero"])
@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_a_border_of_a_codebook_is_the_first_number_that_the_exact_twin_sends_up(ties, real):
    # the midpoint of the last two is no float32; that of the first two is, and decides by the tie rule
    table = (-1.0, 1.0, 1.0 + 2.0**-23, 1.5, float(np.float32(2.0**20 + 0.5)))
    fmt = codebook("odd", table, ties=ties, source="made for this test")
    for code, border in enumerate(borders(fmt, ties, real), 1):
        below = np.nextafter(border, real(-np.inf))
        assert exact.encode(float(border), fmt) >= code > exact.encode(float(below), fmt)
    x = np.concatenate([borders(fmt, ties, real), np.nextafter(borders(fmt, ties, real), real(-np.inf))])
    np.testing.assert_array_equal(kvf.encode(x, fmt), [exact.encode(float(each), fmt) for each in x])


def test_codes_beyond_a_table_of_a_codebook_stand_for_nothing():
    fmt = codebook("five", (-2, -1, 0, 1, 2), ties="nearest_even", source="made for this test")
    assert (fmt.bits, fmt.codes, fmt.nan_codes) == (3, 8, (5, 6, 7))
    np.testing.assert_array_equal(
        kvf.decode(np.arange(8, dtype=np.uint8), fmt), [-2, -1, 0, 1, 2, np.nan, np.nan, np.nan]
    )
    np.testing.assert_array_equal(kvf.encode(np.float32([-9, -1.5, 0.5, 1.5, 9]), fmt), [0, 0, 2, 4, 4])


@pytest.mark.parametrize(
    "table, bits, says",
    [
        ((1.0, 0.0), None, "ascend; got 1 before 0"),
        ((0.0, 0.0), None, "ascend; got 0 before 0"),
        ((0.0, -0.0), None, "ascend"),
        ((0.0,), None, "has 2 to 2 values; got 1"),
        ((0.0, 1.0, 2.0), 1, "has 2 to 2 values; got 3"),
        ((0.0, 0.1), None, "float32 numbers; got 0.1"),
        ((0.0, float("inf")), None, "finite float32 numbers; got inf"),
        ((0.0, float("nan")), None, "finite float32 numbers; got nan"),
        ((0.0, 1.0), 9, "1 to 8 bits; got 9"),
        (tuple(range(257)), None, "1 to 8 bits; got 9"),
    ],
)
def test_a_codebook_that_is_none_is_refused(table, bits, says):
    with pytest.raises(kvf.InputError, match=says):
        codebook("bad", table, ties="nearest_up", bits=bits, source="")


@pytest.mark.parametrize("name", ["e4m3fn", "int8", "float16", "float32", "input", "iq4_nl"])
def test_a_name_of_the_catalogue_cannot_be_taken(name):
    with pytest.raises(kvf.InputError, match="kvformat's own"):
        define(floating(name, 2, 1, bias=1, max_code=7, nan_input_code=7, source=""))


@pytest.mark.parametrize("name", [name for name in ELEMENTS if ELEMENTS[name].kind != "exponent"])
def test_the_sweep_s_table_has_every_code_that_is_a_number(name):
    fmt = kvf.element(name)
    found = {run.code for run in sweep.runs(fmt, sweep.policies(fmt)[0])}
    assert found >= {code for code in range(fmt.codes) if code not in (*fmt.nan_codes, *fmt.inf_codes)} - (
        set() if fmt.has_negative_zero else {fmt.sign_bit} if fmt.kind == "float" else set()
    )


@pytest.mark.parametrize("name", ELEMENTS)
def test_limits_are_those_of_the_values(name):
    fmt = kvf.element(name)
    values = [exact.decode(code, fmt) for code in range(fmt.codes)]
    finite = sorted(value.value for value in values if value.finite)
    assert (Fraction(fmt.lowest), Fraction(fmt.max)) == (finite[0], finite[-1])
    assert fmt.digits == len(f"{fmt.codes - 1:x}")
