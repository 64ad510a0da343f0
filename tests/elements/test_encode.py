"""One rounding, to nearest even, from every input type: whole domains, every midpoint, the traps of two roundings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvformat as kvf
from kvformat.elements import exact
from tests.elements import twin
from tests.elements.compare import assert_same_codes
from tests.elements.domains import (
    ALL,
    BFLOAT16,
    FLOATS,
    INTEGERS,
    ML_DTYPES,
    POLICIES,
    all_halves,
    critical_neighbours,
    midpoints,
)

few = settings(max_examples=40)


def _encode(x, name, overflow="saturate", rounding="nearest_even"):
    return kvf.encode(x, name, overflow=overflow, rounding=rounding)


def _sign_bit(name):
    return {"e2m1fn": 0x8}.get(name, 0x80)


@pytest.mark.parametrize("dtype", [np.float16, BFLOAT16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name, overflow, rounding", POLICIES)
def test_all_65536_half_precision_inputs_encode_as_the_twin_says(name, overflow, rounding, dtype):
    x = all_halves(dtype)
    assert_same_codes(_encode(x, name, overflow, rounding), twin.encode(x, name, overflow, rounding), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, overflow, rounding", POLICIES)
def test_magnitudes_midpoints_and_their_neighbours_encode_as_the_twin_says(name, overflow, rounding, dtype):
    x = critical_neighbours(name, dtype)
    assert_same_codes(_encode(x, name, overflow, rounding), twin.encode(x, name, overflow, rounding), x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name, overflow, rounding", POLICIES)
def test_random_bits_and_random_numbers_encode_as_the_twin_says(name, overflow, rounding, dtype):
    rng = np.random.default_rng(7)
    unsigned = f"u{np.dtype(dtype).itemsize}"
    patterns = rng.integers(0, np.iinfo(unsigned).max, 1 << 16, unsigned, endpoint=True).view(dtype)
    scale = kvf.element(name).max if name != "e8m0fnu" else 8.0
    x = np.concatenate([patterns, (rng.uniform(-1.2, 1.2, 1 << 16) * scale).astype(dtype)])
    assert_same_codes(_encode(x, name, overflow, rounding), twin.encode(x, name, overflow, rounding), x)


@pytest.mark.parametrize("name, overflow, rounding", POLICIES)
@few
@given(x=st.floats(width=32) | st.floats(-600, 600, width=32))
@example(x=2.0**-149)
@example(x=-0.0)
def test_float32_encodes_as_the_twin_itself_says(name, overflow, rounding, x):
    pattern = exact.encode(x, name, overflow=overflow, rounding=rounding)
    assert int(_encode(np.float32(x), name, overflow, rounding)) % kvf.element(name).codes == pattern


@pytest.mark.parametrize("name, overflow, rounding", POLICIES)
@few
@given(x=st.floats() | st.floats(-600, 600) | st.floats(-1e-37, 1e-37))
@example(x=1.0625 + 2**-40)
@example(x=-431.99999999999994)
@example(x=5e-324)
def test_float64_encodes_as_the_twin_itself_says(name, overflow, rounding, x):
    pattern = exact.encode(x, name, overflow=overflow, rounding=rounding)
    assert int(_encode(x, name, overflow, rounding)) % kvf.element(name).codes == pattern


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FLOATS)
def test_every_tie_goes_to_the_even_code_and_its_neighbours_to_theirs(name, dtype):
    # by hand, without the twin: codes count magnitudes, so `lower` and `lower + 1` are the two candidates
    lower, points = (np.array(each) for each in zip(*midpoints(name), strict=True))
    points = points.astype(dtype)
    upper = np.minimum(lower + 1, kvf.element(name).max_code)  # the last step saturates
    even = np.where(lower % 2 == 0, lower, upper)
    for x, expected in (
        (points, even),
        (np.nextafter(points, dtype(0)), lower),
        (np.nextafter(points, dtype(np.inf)), upper),
    ):
        assert_same_codes(kvf.encode(x, name), expected.astype(np.uint8), x)
        negative = np.where((expected == 0) & name.endswith("fnuz"), 0, expected | _sign_bit(name))
        assert_same_codes(kvf.encode(-x, name), negative.astype(np.uint8), -x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", INTEGERS)
def test_every_half_goes_to_the_even_integer_and_its_neighbours_to_theirs(name, dtype):
    low, high = {"int8": (-128, 127), "int4": (-8, 7)}[name]
    floor = np.arange(low - 2, high + 3)
    points = (floor + 0.5).astype(dtype)
    for x, expected in (
        (points, np.where(floor % 2 == 0, floor, floor + 1)),
        (np.nextafter(points, dtype(-np.inf)), floor),
        (np.nextafter(points, dtype(np.inf)), floor + 1),
    ):
        assert_same_codes(kvf.encode(x, name), np.clip(expected, low, high).astype(np.int8), x)


@pytest.mark.parametrize("hair", [2.0**-24, 2.0**-25, 2.0**-30, 2.0**-40, 2.0**-51])
@pytest.mark.parametrize("name", FLOATS)
def test_float64_a_hair_beside_a_midpoint_is_not_rounded_twice(name, hair):
    # narrowing to float32 first would land on the midpoint, for every one of them from a hair below 2^-25 on
    lower, points = (np.array(each) for each in zip(*midpoints(name), strict=True))
    above, below = points * (1 + hair), points * (1 - hair)
    if hair < 2.0**-25:
        assert (above.astype(np.float32) == points).all()
        assert (below.astype(np.float32) == points).all()
    upper = np.minimum(lower + 1, kvf.element(name).max_code)
    assert_same_codes(kvf.encode(above, name), upper.astype(np.uint8), above)
    assert_same_codes(kvf.encode(below, name), lower.astype(np.uint8), below)


@pytest.mark.parametrize(
    "x, name, code",
    [
        (1.0625 + 2**-40, "e4m3fn", 0x39),
        (-431.99999999999994, "e4m3fn", 0xFD),  # -416: ml_dtypes 401
        (2.5 + 1e-12, "e2m1fn", 0x5),
        (0.25 + 2**-40, "e2m1fn", 0x1),
        (464 + 2**-40, "e4m3fn", 0x7E),
        (2**-10 + 2**-60, "e4m3fn", 0x01),
        (2**-10 - 2**-63, "e4m3fn", 0x00),
        (2.5 + 2**-40, "int8", 3),
        (3.5 - 2**-40, "int4", 3),
        (2**-1074, "e4m3fn", 0x00),
        (-(2**-1074), "e4m3fn", 0x80),
        (1e300, "e5m2", 0x7B),
    ],
)
def test_float64_is_rounded_once(x, name, code):
    assert kvf.encode(np.float64(x), name) == code
    assert kvf.encode(x, name) == code  # a Python number is a float64


@pytest.mark.parametrize("rounding, code", [("up", 0x80), ("down", 0x7F), ("nearest_even", 0x7F)])
def test_float64_above_a_power_of_two_is_rounded_once_to_e8m0fnu(rounding, code):
    assert kvf.encode(1 + 2.0**-40, "e8m0fnu", rounding=rounding) == code
    assert kvf.encode(1.5 + 2.0**-40, "e8m0fnu", rounding="nearest_even") == 0x80


def test_464_plus_a_hair_is_beyond_e4m3fn_only_if_it_is_rounded_once():
    assert kvf.encode(464.0, "e4m3fn", overflow="ieee") == 0x7E
    assert kvf.encode(464 + 2**-40, "e4m3fn", overflow="ieee") == 0x7F


@pytest.mark.parametrize(
    "x, name, code",
    [
        # a float16 or bfloat16 on the way would round these twice
        (1.0625001, "e4m3fn", 0x39),
        (272.156555, "e4m3fn", 0x79),
        (400.199585, "e4m3fn", 0x7D),
        (136.002075, "e4m3fn", 0x71),
        (1.06640530, "e4m3fn", 0x39),
        (1.8131605, "e4m3fn", 0x3F),
        # a carry that is lost (A5), ties of e5m2 (A3), the top binade (B6), overflow judged before rounding (B5)
        (126.24, "e4m3fn", 0x70),
        (9.0, "e5m2", 0x48),
        (1.125, "e5m2", 0x3C),
        (256.0, "e4m3fn", 0x78),
        (58000.0, "e5m2", 0x7B),
        # the block scale boundary of C4
        (6 * 2**-10 / 6, "e4m3fn", 0x00),
        (0.00586 / 6, "e4m3fn", 0x01),
    ],
)
def test_float32_inputs_of_public_bug_reports(x, name, code):
    assert kvf.encode(np.float32(x), name) == code


def test_e2m1fn_ties_of_a_bug_report():
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    nearest = np.array([0, 1, 1, 2, 2, 4, 4], np.float32)
    np.testing.assert_array_equal(kvf.decode(kvf.encode(ties, "e2m1fn"), "e2m1fn"), nearest)
    np.testing.assert_array_equal(kvf.decode(kvf.encode(-ties, "e2m1fn"), "e2m1fn"), -nearest)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, BFLOAT16], ids=["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", ALL)
def test_every_finite_code_comes_back_from_its_value(name, dtype):
    fmt = kvf.element(name)
    patterns = np.arange(fmt.codes, dtype=np.uint8)
    finite = patterns[np.isfinite(fmt.values())]
    rounding = "nearest_even"
    found = kvf.encode(kvf.decode(finite, name, dtype=dtype), name, rounding=rounding)
    assert_same_codes(found.view(np.uint8) & np.uint8(fmt.codes - 1), finite)


def test_negative_zero_comes_back_where_the_format_has_one():
    for name, code in (("e4m3fn", 0x80), ("e5m2", 0x80), ("e2m1fn", 0x8), ("e4m3fnuz", 0), ("e5m2fnuz", 0)):
        assert kvf.encode(np.float32(-0.0), name) == code
        assert kvf.encode(np.float32(-1e-30), name) == code
    for name in INTEGERS:
        assert kvf.encode(np.float32(-0.0), name) == 0


def test_infinity_of_e5m2_comes_back_under_ieee():
    codes = np.array([0x7C, 0xFC], np.uint8)
    assert_same_codes(kvf.encode(kvf.decode(codes, "e5m2"), "e5m2", overflow="ieee"), codes)


@pytest.mark.parametrize("name", FLOATS)
def test_float32_in_range_encodes_as_ml_dtypes_does(name):
    rng = np.random.default_rng(11)
    limit = kvf.element(name).max
    x = np.concatenate([rng.uniform(-limit, limit, 1 << 16), limit * np.exp2(-rng.uniform(0, 24, 1 << 16))])
    x = np.concatenate([x, -x]).astype(np.float32)
    assert_same_codes(kvf.encode(x, name), x.astype(ML_DTYPES[name]).view(np.uint8), x)
