"""The exact twin, judged by hand: it judges everything else."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.elements import exact
from kvformat.elements.exact import BINARIES, number
from tests.elements import twin
from tests.elements.domains import ALL, POLICIES, ladder, midpoints


@pytest.mark.parametrize("name", ALL)
def test_twin_has_the_magnitudes_computed_by_hand(name):
    assert list(exact.magnitudes(exact.element(name))) == ladder(name)


@pytest.mark.parametrize("name", ALL)
def test_twin_sends_a_tie_to_the_even_code_and_the_rest_to_the_nearer_one(name):
    hair = Fraction(1, 2**400)
    top = exact.element(name).max_code
    for lower, point in midpoints(name):
        upper = min(lower + 1, top)  # the last one saturates
        even = lower if lower % 2 == 0 else upper
        middle = Fraction(point)
        assert exact.encode(middle, name) == even
        assert exact.encode(middle - hair, name) == lower
        assert exact.encode(middle + hair, name) == upper


def test_twin_rounds_e8m0fnu_up_and_down_and_stays_on_powers_of_two():
    hair = Fraction(1, 2**400)
    for code in range(255):
        power = Fraction(2) ** (code - 127)
        for rounding in ("up", "down", "nearest_even"):
            assert exact.encode(power, "e8m0fnu", rounding=rounding) == code
        assert exact.encode(power + hair, "e8m0fnu", rounding="up") == min(code + 1, 0xFE)
        assert exact.encode(power - hair, "e8m0fnu", rounding="up") == code
        assert exact.encode(power + hair, "e8m0fnu", rounding="down") == code
        assert exact.encode(power - hair, "e8m0fnu", rounding="down") == max(code - 1, 0)


@pytest.mark.parametrize("name, overflow, rounding", POLICIES)
@given(x=st.one_of(st.floats(), st.floats(-500, 500), st.floats(-8, 8), st.floats(-(2.0**-120), 2.0**-120)))
def test_fast_table_of_the_twin_is_the_twin(name, overflow, rounding, x):
    pattern = exact.encode(x, name, overflow=overflow, rounding=rounding)
    found = twin.encode(np.array([x]), name, overflow, rounding)
    assert int(found[0]) % exact.element(name).codes == pattern


@given(st.fractions(max_denominator=10**12) | st.floats(allow_nan=False, allow_infinity=False).map(Fraction))
def test_round_binary_to_float64_is_python_s_own_division(x):
    # int / int and float(Fraction) are correctly rounded in Python
    try:
        expected = x.numerator / x.denominator
    except OverflowError:
        expected = math.copysign(math.inf, x)
    found = exact.round_binary(number(x), BINARIES["float64"])
    assert float(found) == expected


@given(st.floats(allow_nan=False))
def test_round_binary_to_float32_is_the_hardware_s_conversion(x):
    with np.errstate(over="ignore", under="ignore"):
        expected = float(np.float32(x))
    found = float(exact.round_binary(number(x), BINARIES["float32"]))
    assert (found, math.copysign(1, found)) == (expected, math.copysign(1, expected))


@pytest.mark.parametrize(
    "value, precision, expected",
    [
        (Fraction(2**24 + 1), "float32", 2**24),  # tie to even
        (Fraction(2**24 + 3), "float32", 2**24 + 4),
        (Fraction(2**24 + 1) + Fraction(1, 2**90), "float32", 2**24 + 2),
        (Fraction(1, 2**150), "float32", 0),  # half of the smallest subnormal is a tie with 0
        (Fraction(3, 2**151), "float32", Fraction(1, 2**149)),
        (Fraction(3, 2**150), "float32", Fraction(2, 2**149)),  # 1.5 steps: to the even step
        (Fraction(2**128 - 2**103) - 1, "float32", 2**128 - 2**104),
        (Fraction(2049), "float16", 2048),
        (Fraction(257), "bfloat16", 256),
        (Fraction(259), "bfloat16", 260),
    ],
)
def test_round_binary_by_hand(value, precision, expected):
    assert exact.round_binary(number(value), BINARIES[precision]) == number(Fraction(expected))


@pytest.mark.parametrize(
    "precision, limit", [("float32", 2**128 - 2**103), ("float16", 65520), ("bfloat16", 2**128 - 2**119)]
)
def test_round_binary_overflows_from_the_midpoint_on(precision, limit):
    assert exact.round_binary(number(Fraction(-limit)), BINARIES[precision]) == exact.infinity(negative=True)
    assert exact.round_binary(number(Fraction(limit) - 1), BINARIES[precision]).finite


def test_numbers_keep_the_sign_of_zero():
    assert number(-0.0).negative
    assert not number(0.0).negative
    assert math.copysign(1, float(number(-0.0))) == -1


def test_infinity_and_nan_have_no_value():
    for x in (math.inf, math.nan):
        with pytest.raises(ValueError, match="not real numbers"):
            _ = number(x).value
