"""exact/*: float64 evaluates it exactly. The proof is in kvformat.recipes.compose; here are the inputs that would break it.

Wherever a quotient x / d lies beside a midpoint m of two codes, x is the float32 next to m * d. So m * d is computed as
a fraction, for scales of every size, and the engine must put the float32 nearest to it and its neighbours where the
exact quotient belongs.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import kvformat as kvf
from kvformat.elements import exact
from tests.elements.domains import midpoints

MAX = float(np.finfo(np.float32).max)
TINY = 2.0**-149


def _scales(count, seed):
    """float32 scales: random significands of every exponent, subnormal ones, powers of two and their neighbours."""
    rng = np.random.default_rng(seed)
    random = (rng.uniform(1, 2, count) * np.exp2(rng.integers(-126, 127, count))).astype(np.float32)
    subnormal = (rng.integers(1, 1 << 23, count) * TINY).astype(np.float32)
    few = (rng.integers(1, 40, count) * TINY).astype(np.float32)
    powers = np.exp2(rng.integers(-140, 127, count)).astype(np.float32)
    infinity = np.float32(np.inf)
    return np.concatenate(
        [random, subnormal, few, powers, np.nextafter(powers, infinity), np.nextafter(powers, -infinity)]
    )


def _beside(product):
    """The float32 nearest to a positive fraction and one neighbour on each side, without 0 and Inf."""
    if product >= Fraction(MAX):
        return []
    near = np.float32(float(product))
    around = [np.nextafter(near, np.float32(0)), near, np.nextafter(near, np.float32(np.inf))]
    return [float(x) for x in around if x and np.isfinite(x)]


def _near_ties(name, scale, count, rng):
    """float32 beside random midpoints times the scale, with the code that belongs to the exact quotient."""
    points = [Fraction(point) for _, point in midpoints(name)]
    found = []
    for index in rng.integers(0, len(points), count):
        for x in _beside(points[index] * scale):
            sign = -1 if rng.random() < 0.5 else 1
            found.append((sign * x, exact.encode(Fraction(sign * x) / scale, name)))
    return found


def test_fp8_with_a_given_scale():
    rng = np.random.default_rng(1)
    for s in _scales(25, 2):
        cases = _near_ties("e4m3fn", Fraction(float(s)), 12, rng)
        x = np.array([x for x, _ in cases], np.float32).reshape(1, 1, -1)
        assert kvf.quantize(x, "exact/fp8_per_tensor", scale=s).codes.reshape(-1).tolist() == [c for _, c in cases]


@pytest.mark.parametrize(
    "mode, largest, name", [("fp8_per_token_head", 448, "e4m3fn"), ("int8_per_token_head", 127, "int8")]
)
def test_rows_whose_scale_comes_from_their_amax(mode, largest, name):
    rng = np.random.default_rng(3)
    dims, rows, expected, scales = 31, [], [], []
    for scale in _scales(25, 4):
        amax = np.float32(min(float(scale) * largest, MAX))
        with np.errstate(under="ignore"):
            s = amax / np.float32(largest)  # golden's float32 division
        if s == 0:
            continue
        cases = [(x, c) for x, c in _near_ties(name, Fraction(float(s)), 40, rng) if abs(x) <= amax][: dims - 1]
        cases += [(0.0, 0)] * (dims - 1 - len(cases))
        top = exact.encode(Fraction(float(amax)) / Fraction(float(s)), name)
        rows.append([float(amax), *(x for x, _ in cases)])
        expected.append([top, *(c for _, c in cases)])
        scales.append(s)
    x = np.array(rows, np.float32)[:, None, :]
    assert len(x) > 100
    q = kvf.quantize(x, f"exact/{mode}")
    np.testing.assert_array_equal(q.scales[:, 0], np.array(scales))
    found = q.codes[:, 0, :].view(np.uint8)
    wanted = np.array(expected, np.uint8)
    if name == "int8":  # recipes keep to -127
        wanted = np.where(wanted == 0x80, 0x81, wanted)
    np.testing.assert_array_equal(found, wanted)


def test_nvfp4_block_scales_beside_the_midpoints_of_e4m3fn():
    rng = np.random.default_rng(5)
    points = [Fraction(point) for _, point in midpoints("e4m3fn")]
    seen = 0
    for g in _scales(25, 6):
        six_g = 6 * Fraction(float(g))
        amax = [a for i in rng.integers(0, len(points), 8) for a in _beside(points[i] * six_g)]
        if not amax:
            continue
        x = np.zeros((len(amax), 1, 16), np.float32)
        x[:, 0, 3] = amax
        expected = [exact.encode(Fraction(float(a)) / six_g, "e4m3fn") for a in amax]
        assert kvf.quantize(x, "exact/nvfp4", scale=g).scales[:, 0, 0].tolist() == expected
        seen += len(amax)
    assert seen > 2000


def test_nvfp4_codes_beside_the_midpoints_of_e2m1fn():
    rng = np.random.default_rng(7)
    seen = 0
    for g in _scales(25, 8):
        exact_g = Fraction(float(g))
        for code in rng.integers(1, 0x7F, 4):
            bs = Fraction(kvf.element("e4m3fn").value(int(code)))
            amax = np.float32(min(float(6 * bs * exact_g), MAX))
            d_code = exact.encode(Fraction(float(amax)) / (6 * exact_g), "e4m3fn")
            if d_code == 0:
                continue
            d = Fraction(kvf.element("e4m3fn").value(d_code)) * exact_g
            cases = [(x, c) for x, c in _near_ties("e2m1fn", d, 12, rng) if abs(x) <= amax][:15]
            x = np.zeros((1, 1, 16), np.float32)
            x[0, 0, 0] = amax
            x[0, 0, 1 : 1 + len(cases)] = [value for value, _ in cases]
            q = kvf.quantize(x, "exact/nvfp4", scale=g)
            assert q.scales.item() == d_code
            assert q.codes[0, 0, 1 : 1 + len(cases)].tolist() == [c for _, c in cases]
            seen += len(cases)
    assert seen > 2000


def test_golden_and_exact_differ_where_float32_rounds_onto_the_tie():
    # A7 of the bug zoo turned round: x / s in float32 is the tie itself, exactly it lies beside it
    rng = np.random.default_rng(9)
    differ = 0
    for s in _scales(100, 10)[:100]:
        cases = _near_ties("e4m3fn", Fraction(float(s)), 10, rng)
        x = np.array([x for x, _ in cases], np.float32).reshape(1, 1, -1)
        golden, real = (kvf.quantize(x, f"{kind}/fp8_per_tensor", scale=s).codes for kind in ("golden", "exact"))
        differ += int(np.count_nonzero(golden != real))
    assert differ > 20


def test_scales_of_exact_are_those_of_golden():
    x = np.random.default_rng(11).standard_normal((20, 4, 64)).astype(np.float32)
    for mode in ("fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head"):
        np.testing.assert_array_equal(kvf.quantize(x, f"exact/{mode}").scales, kvf.quantize(x, mode).scales)
    assert kvf.quantize(x, "exact/nvfp4").global_scale == kvf.quantize(x, "nvfp4").global_scale
