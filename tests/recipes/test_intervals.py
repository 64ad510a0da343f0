"""Words on intervals that other tests do not reach: a fused multiply-add."""

from itertools import product

import numpy as np
import pytest

from kvformat.elements.exact import number
from kvformat.recipes.exact import evaluate
from kvformat.recipes.intervals import points, run
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
