"""Key de-biasing: its golden bytes follow from the written arithmetic, and what it does not touch stays as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from decimal import Decimal, getcontext
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.errors import InputError
from kvformat.simulate.debias import Debias
from kvformat.simulate.rope import Rope

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((ROOT / "spec" / "debias" / "golden.json").read_text())
TOKENS, HEADS, DIMS = GOLDEN["shape"]


def array(patterns, dtype, *shape):
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    return np.array([int(each, 16) for each in patterns], unsigned).view(dtype).reshape(shape)


def constant():
    """RoPE(b) from the file's bias and table: each product and each sum rounded by itself, one number at a time."""
    bias = array(GOLDEN["bias"], np.float32, HEADS, DIMS)
    half = DIMS // 2
    cos, sin = (array(GOLDEN[name], np.float32, TOKENS, half) for name in ("cos", "sin"))
    out = np.empty((TOKENS, HEADS, DIMS), np.float32)
    for token in range(TOKENS):
        for head in range(HEADS):
            for i in range(half):
                low, high = bias[head, i], bias[head, i + half]
                c, s = cos[token, i], sin[token, i]
                out[token, head, i] = np.float32(np.float32(low * c) - np.float32(high * s))
                out[token, head, i + half] = np.float32(np.float32(high * c) + np.float32(low * s))
    return out


def test_the_golden_constant_is_the_written_arithmetic():
    assert np.array_equal(constant().view(np.uint32), array(GOLDEN["constant"], np.uint32, TOKENS, HEADS, DIMS))


@np.errstate(invalid="ignore")
def plain_int8(left):
    """golden/int8_per_token_head by its definition: codes and scales of a row."""
    finite = np.abs(left[np.isfinite(left)])
    scale = np.float32(finite.max() / np.float32(127)) if finite.size else np.float32(0)
    scale = scale or np.float32(1)
    if np.isnan(left).any():
        return np.zeros(len(left), np.int8), np.float32(np.nan)
    return np.clip(np.rint(left / scale), -127, 127).astype(np.int8), scale


@np.errstate(invalid="ignore")
def plain_fp8(left):
    finite = np.abs(left[np.isfinite(left)])
    scale = np.float32(finite.max() / np.float32(448)) if finite.size else np.float32(0)
    scale = scale or np.float32(1)
    quotient = left / scale
    codes = np.clip(quotient, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    return np.where(np.isnan(quotient), 0x7F, codes).astype(np.uint8), scale


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("recipe", "plain"), [("int8_per_token_head", plain_int8), ("fp8_per_token_head", plain_fp8)])
def test_the_golden_bytes_are_the_recipe_on_key_minus_constant(dtype, recipe, plain):
    (case,) = (c for c in GOLDEN["cases"] if c["dtype"] == dtype and c["recipe"] == f"golden/{recipe}")
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    key = array(case["key"], kind, TOKENS, HEADS, DIMS).astype(np.float32)
    left = key - constant()
    codes = array(case["codes"], np.int8 if "int8" in recipe else np.uint8, TOKENS, HEADS, DIMS)
    scales = array(case["scales"], np.float32, TOKENS, HEADS)
    values = array(case["values"], np.float32, TOKENS, HEADS, DIMS)
    for token in range(TOKENS):
        for head in range(HEADS):
            expected, scale = plain(left[token, head])
            assert np.array_equal(codes[token, head], expected)
            np.testing.assert_array_equal(scales[token, head], scale)
            decoded = (expected if "int8" in recipe else expected.view(ml_dtypes.float8_e4m3fn)).astype(np.float32)
            np.testing.assert_array_equal(values[token, head], decoded * scale + constant()[token, head])


def test_a_key_that_is_its_constant_leaves_zeros_in_float32():
    for case in GOLDEN["cases"]:
        if case["dtype"] == "float32":
            codes = array(case["codes"], np.uint8, TOKENS, HEADS, DIMS)[0]
            assert not codes.any(), case["recipe"]
            restored = array(case["values"], np.float32, TOKENS, HEADS, DIMS)[0]
            assert np.array_equal(restored, constant()[0])


@pytest.mark.slow
def test_the_committed_bytes_are_what_the_tool_makes():
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_debias.py"), "--check"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def exact_cos(position, theta, exponent):
    """cos(position * theta^-exponent) by its Taylor series in 60 digits."""
    getcontext().prec = 60
    angle = Decimal(position) * (Decimal(theta).ln() * -exponent).exp()
    turn = 2 * Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    angle %= turn
    term, total, n = Decimal(1), Decimal(1), 0
    while abs(term) > Decimal(10) ** -50:
        n += 2
        term *= -angle * angle / (n * (n - 1))
        total += term
    return float(total)


@pytest.mark.parametrize("position", [0, 1, 17, 1000, 131071])
def test_the_rope_table_is_that_of_the_real_cosines(position):
    cos, _ = Rope(1e6).table(1, 64, position)
    for i in range(32):
        exact = exact_cos(position, 1_000_000, Decimal(2 * i) / 64)
        # binary64 angles of 1e5 are good to 1e-11, and a float32 cosine has steps of 6e-8 at most
        assert abs(float(cos[0, i]) - exact) <= 2.0**-25 + 1e-10


@given(seed=st.integers(0, 500), start=st.integers(0, 100000))
def test_restore_undoes_remove_to_a_rounding(seed, start):
    rng = np.random.default_rng(seed)
    how = Debias(rng.normal(0, 50, (2, 16)).astype(np.float32), Rope(1e5))
    key = rng.normal(0, 2, (3, 2, 16)).astype(np.float32) + how.constant(3, start)
    error = np.abs(how.restore(how.remove(key, start), start) - key)
    assert (error <= 2.0**-23 * (np.abs(key) + np.abs(how.constant(3, start)))).all()


@given(seed=st.integers(0, 500), start=st.integers(1, 500), by=st.integers(-500, 500))
def test_shifted_keys_are_those_of_the_other_position(seed, start, by):
    x = np.random.default_rng(seed).normal(0, 1, (1, 2, 16))
    rope = Rope(1e4)
    np.testing.assert_allclose(rope.shift(rope.turn(x, start), by), rope.turn(x, start + by), atol=1e-5)


def test_a_calibrated_mean_finds_the_bias():
    rng = np.random.default_rng(0)
    bias = rng.normal(0, 100, (2, 32)).astype(np.float32)
    rope = Rope(1e6)
    key = rope.turn(bias + rng.normal(0, 1, (400, 2, 32)), 7)
    found = Debias.calibrated(key, rope, 7)
    assert np.abs(found.bias - bias).max() < 5 * 400**-0.5


def test_a_bias_that_does_not_fit_is_one_line():
    how = Debias(np.zeros((2, 16), np.float32), Rope())
    with pytest.raises(InputError, match="the bias's"):
        how.remove(np.zeros((3, 2, 8), np.float32))
    with pytest.raises(InputError, match="finite"):
        Debias(np.full((2, 16), np.nan, np.float32), Rope())
    with pytest.raises(InputError, match="even"):
        Rope().table(2, 15)
