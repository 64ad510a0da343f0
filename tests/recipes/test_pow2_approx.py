"""`pow2_approx`: a power of two by way of a logarithm in binary32, which forgets the last bits of large exponents."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat.recipes import exact, plain
from kvformat.recipes.entry import parse_recipe

RECIPE = parse_recipe(
    {
        "name": "test/pow2_approx",
        "mode": "fp8_per_token_head",
        "element": "e4m3fn",
        "scales": [{"name": "s", "granularity": "per_token_head", "program": "s = pow2_approx(amax(x), up)"}],
        "code": "c = encode(x, e4m3fn)",
        "value": "v = mul(c, s)",
        "source": "tests",
    }
)


def scales_of(x: np.ndarray) -> np.ndarray:
    return kvf.quantize(x.reshape(-1, 1, 1), RECIPE).scales.reshape(-1)


@pytest.mark.parametrize(
    ("exponent", "forgotten"),
    [(0, 0), (1, 0), (3, 0), (4, 1), (8, 2), (16, 5), (32, 11), (64, 22), (-64, 11), (-65, 22)],
)
def test_the_logarithm_forgets_so_many_ulp_above_a_power_of_two(exponent: int, forgotten: int) -> None:
    # ln 2 * half an ulp of the exponent, in units of 2^-23; next to -2^k the numbers towards zero are twice as dense
    ulps = np.arange(forgotten + 3)
    x = np.ldexp(1 + ulps * 2.0**-23, exponent).astype(np.float32)
    expected = np.where(ulps <= forgotten, 2.0**exponent, 2.0 ** (exponent + 1))
    np.testing.assert_array_equal(scales_of(x), expected.astype(np.float32))


def test_the_engine_its_exact_twin_and_the_numpy_reader_agree_next_to_every_power_of_two() -> None:
    powers = np.exp2(np.arange(-149.0, 128)).astype(np.float32)
    rng = np.random.default_rng(7)
    near = (powers.view(np.int32) + rng.integers(-30, 31, (12, powers.size), np.int32)).clip(0, 0x7F80_0001)
    x = np.concatenate([near.astype(np.int32).view(np.float32).reshape(-1), powers, [0, np.inf, np.nan]])
    x = x.astype(np.float32)
    _, expected, _ = exact.quantize(x.reshape(-1, 1, 1), RECIPE)
    np.testing.assert_array_equal(scales_of(x), expected.reshape(-1))
    read = plain.quantize(x.reshape(-1, 1, 1), RECIPE).scales
    np.testing.assert_array_equal(read.reshape(-1), expected.reshape(-1))
