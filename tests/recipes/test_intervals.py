"""Words on intervals that other tests do not reach: a fused multiply-add, powers of two, which are a set."""

from itertools import product

import numpy as np
import pytest

from kvformat.elements.exact import number
from kvformat.elements.formats import element
from kvformat.recipes.exact import evaluate
from kvformat.recipes.intervals import codes_inside, inside, points, run
from kvformat.recipes.program import Program
from tests.elements.compare import assert_same_values

# products of 53 x 53 bits whose low half decides, exact zeros, overflow, zeros of both signs, Inf, NaN
NUMBERS = (
    0.0,
    -0.0,
    1.0,
    -1.0,
    1 + 2.0**-52,
    -(1 + 2.0**-51),
    2.0**-60,
    2.0**1000,
    -(2.0**1000),
    5e-324,
    # the same of 24 x 24 bits
    1 + 2.0**-23,
    -(1 + 2.0**-22),
    2.0**-25,
    2.0**127,
    2.0**-149,
    np.inf,
    np.nan,
)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_fused_product_is_the_exact_twins(precision):
    program = Program.parse("r = fma(a, b, d)", precision)
    with np.errstate(over="ignore"):
        numbers = np.array(NUMBERS, precision).astype(np.float64)
    triples = np.array(list(product(numbers, repeat=3)))
    inputs = {name: points(triples[:, i].astype(precision)) for i, name in enumerate("abd")}
    found = run(program, inputs, np.zeros((1, 1), np.float32))["r"]
    twins = [evaluate(program, dict(zip("abd", map(number, triple), strict=True)))["r"] for triple in triples.tolist()]
    expected = np.array([float(twin) for twin in twins], precision)
    assert found.low.dtype == precision
    assert_same_values(found.low, expected)
    assert_same_values(found.high, expected)


POWERS = {
    "r = pow2_approx(a, up)": (4.0, (4.0, 8.0)),  # log2 is 2; 2 ulp above it, ceil gives 3
    "r = max(pow2_approx(a, up), 5.877471754111438e-39)": (4.0, (4.0, 8.0)),  # modelopt's floor is 2^-127
    "t = pow2_approx(a, up)\nr = select(isnan(t), 0, min(t, 1.7014118346046923e+38))": (4.0, (4.0, 8.0)),
    "r = pow2_approx(div_full(a, 1), up)": (4.0, (4.0, 8.0)),
    "r = mul(pow2_approx(a, up), 0.5)": (4.0, (2.0, 4.0)),
    "r = div(1, pow2_approx(a, up))": (4.0, (0.125, 0.25)),
}


@pytest.mark.parametrize(("text", "a", "expected"), [(text, *case) for text, case in POWERS.items()])
def test_an_approximate_power_of_two_is_one_of_two_numbers_and_nothing_between(text, a, expected):
    allowed = run(Program.parse(text), {"a": points(np.full((1, 1, 1), np.float32(a)))}, np.zeros((1, 1), np.float32))
    every = np.concatenate([np.float32(2.0) ** np.arange(-8, 9), np.linspace(0.01, 17, 4001)]).astype(np.float32)
    held = every[inside(every.reshape(-1, 1, 1), allowed["r"]).reshape(-1)]
    assert tuple(np.unique(held)) == expected


def test_a_sum_or_a_floor_that_is_no_power_of_two_leaves_the_whole_interval():
    for text in ("r = add(pow2_approx(a, up), 1)", "r = max(pow2_approx(a, up), 1.5)"):
        inputs = {"a": points(np.ones((1, 1, 1), np.float32))}
        assert not run(Program.parse(text), inputs, np.zeros((1, 1), np.float32))["r"].powers


def test_codes_between_two_powers_of_two_are_none():
    inputs = {"a": points(np.full((1, 1, 1), np.float32(4)))}
    keys = run(Program.parse("c = encode(pow2_approx(a, up), e4m3fn)"), inputs, np.zeros((1, 1), np.float32))["c"]
    codes = np.arange(256, dtype=np.uint8)
    held = codes[codes_inside(codes.reshape(-1, 1, 1), element("e4m3fn"), keys).reshape(-1)]
    assert held.tolist() == [0b0_1001_000, 0b0_1010_000]  # 4 and 8
