"""What `quantize` refuses, in one line; given scales; `dequantize` and its output types."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvformat as kvf
from kvformat.elements import exact
from kvformat.fuzz import strategies
from tests.elements.compare import assert_same_codes, assert_same_values
from tests.recipes import reference

MODES = ("fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
#: NumPy below 1.24 warns of rows of different lengths and makes an array of objects
RAGGED = pytest.mark.filterwarnings("ignore:Creating an ndarray from ragged")
X = np.linspace(-3, 3, 2 * 2 * 16, dtype=np.float32).reshape(2, 2, 16)


def _refused(*arguments, **keywords):
    with pytest.raises(kvf.InputError) as error:
        kvf.quantize(*arguments, **keywords)
    assert "\n" not in str(error.value)
    return str(error.value)


@RAGGED
@pytest.mark.parametrize("mode", ["none", *MODES])
@pytest.mark.parametrize(
    "x, message",
    [
        (X.astype(np.float64), "x must be float32, float16 or bfloat16; got float64"),
        (X.astype(np.int32), "got int32"),
        (X.astype(bool), "got bool"),
        (X.astype(complex), "got complex128"),
        (X.astype(ml_dtypes.float8_e4m3fn), "got float8_e4m3fn"),
        ([[[1.0, 2.0]]], "got float64"),
        ("k", "x must be"),
        (None, "x must be"),
        (X[0], "x must have shape (tokens, heads, head_dim); got (2, 16)"),
        (X[None], "got (1, 2, 2, 16)"),
        (np.float32(1), "got ()"),
        (X[:0], "x has no elements: shape (0, 2, 16)"),
        (X[:, :, :0], "x has no elements: shape (2, 2, 0)"),
        ([[[1.0], [1.0, 2.0]]], "x "),  # NumPy refuses to make an array of it, or makes one of objects
    ],
    ids=str,
)
def test_input_that_is_no_k_or_v_is_refused_in_one_line(mode, x, message):
    assert message in _refused(x, mode)


@pytest.mark.parametrize("dims", [1, 8, 15, 17, 40])
def test_head_dim_that_has_no_whole_blocks_is_refused_by_nvfp4(dims):
    x = np.ones((2, 2, dims), np.float32)
    assert f"multiple of 16; got {dims}" in _refused(x, "nvfp4")
    for mode in MODES[:3]:
        assert kvf.quantize(x, mode).codes.shape == x.shape


@pytest.mark.parametrize(
    "scale, value",
    [
        (0.5, 0.5),
        (np.float32(0.1), np.float32(0.1)),
        (0.1, np.float32(0.1)),
        (1 + 2.0**-24, 1.0),  # rounded once to float32: a tie, to even
        (1 + 2.0**-24 + 2.0**-50, 1 + 2.0**-23),
        (np.array([2.0]), 2.0),
        (np.array([2.0], ">f4"), 2.0),
        (np.array(2.0, np.float16), 2.0),
        (ml_dtypes.bfloat16(2.0), 2.0),
        (3, 3.0),
        (2.0**-149, 2.0**-149),
        (2.0**-150 * 1.001, 2.0**-149),  # rounds up to the smallest subnormal
        (float(np.finfo(np.float32).max), np.finfo(np.float32).max),
    ],
)
@pytest.mark.parametrize("mode", ["fp8_per_tensor", "nvfp4"])
def test_given_scale_is_rounded_once_to_float32(mode, scale, value):
    q = kvf.quantize(X, mode, scale=scale)
    found = q.scales[0] if mode == "fp8_per_tensor" else q.global_scale
    assert isinstance(found, np.float32)
    assert found == value
    assert_same_codes(q.codes, reference.quantize(X, mode, value).codes)


@pytest.mark.parametrize("mode", ["fp8_per_tensor", "nvfp4", "exact/fp8_per_tensor", "exact/nvfp4"])
@pytest.mark.parametrize(
    "scale", [0.0, -0.0, -1.0, np.nan, np.inf, -np.inf, 2.0**-150, 1e-60, 3.5e38, 1e300, -(2.0**-149)]
)
def test_given_scale_that_is_not_finite_and_positive_is_refused(mode, scale):
    assert "a scale must be finite and > 0 in float32" in _refused(X, mode, scale=scale)


@RAGGED
@pytest.mark.parametrize(
    "scale", [[1.0, 2.0], np.ones((2, 2)), np.ones(0), "1.0", True, 1j, [[1.0], [1.0, 2.0]], object()]
)
def test_given_scale_that_is_no_single_number_is_refused(scale):
    assert "scale" in _refused(X, "fp8_per_tensor", scale=scale)


@pytest.mark.parametrize("mode", ["fp8_per_token_head", "int8_per_token_head", "exact/int8_per_token_head"])
def test_scale_of_a_recipe_that_computes_its_own_is_refused(mode):
    assert "computes its scales from x; it takes no scale" in _refused(X, mode, scale=1.0)
    assert "golden/none takes no scale" in _refused(X, "none", scale=1.0)


@pytest.mark.parametrize(
    "name, hint",
    [
        ("fp8_per_token", "fp8_per_token_head"),
        ("golden/nvfp", "golden/nvfp4"),
        ("mxfp4", "nvfp4"),
        ("NVFP4", "are nvfp4, exact/nvfp4, golden/nvfp4"),
        ("", "; the closest of "),
    ],
)
def test_unknown_recipe_names_others(name, hint):
    message = _refused(X, name)
    assert f"unknown recipe {name!r}" in message
    assert hint in message


# --- dequantize ------------------------------------------------------------------------------------------------------


def test_nvfp4_multiplies_by_the_block_scale_first():
    # e = 3, bs = 5, g as below: (3 * 5) * g is rounded once, 3 * (5 * g) and (3 * g) * 5 round twice, to another number
    g = np.float32(float.fromhex("0x1.c0840ep-7"))
    codes, scales = np.full((1, 1, 16), 5, np.uint8), np.full((1, 1, 1), 0x4A, np.uint8)
    q = kvf.Quantized(codes, scales, g, kvf.recipe("nvfp4"))
    expected = exact.round_binary(exact.number(15 * Fraction(float(g))), exact.BINARIES["float32"])
    assert float(expected) == float.fromhex("0x1.a47bcep-3")
    assert (q.dequantize() == np.float32(float(expected))).all()
    assert np.float32(3) * (np.float32(5) * g) != q.dequantize()[0, 0, 0]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60)
@given(data=st.data())
def test_values_are_float32_arithmetic_rounded_once_to_the_output_type(mode, data):
    x = data.draw(strategies.kv_tensors(mode), "x")
    q = kvf.quantize(x, mode)
    expected = reference.dequantize(reference.quantize(x, mode), mode)
    assert q.dequantize().dtype == np.float32
    for dtype in (*strategies.DTYPES, np.dtype(np.float64)):
        with np.errstate(over="ignore", invalid="ignore"):
            assert_same_values(q.dequantize(dtype), expected.astype(dtype))


def test_overflow_to_float16_is_infinity():
    q = kvf.quantize(np.full((1, 1, 16), 1e30, np.float32), "fp8_per_token_head")
    assert np.isinf(q.dequantize(np.float16)).all()
    assert np.isfinite(q.dequantize(ml_dtypes.bfloat16)).all()


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=strategies.DTYPE_IDS)
def test_none_comes_back_as_it_went_in(dtype):
    x = X.astype(dtype)
    assert_same_values(kvf.quantize(x, "none").dequantize(dtype), x)
    assert_same_values(kvf.quantize(x, "none").dequantize(np.float64), x.astype(np.float64))


@pytest.mark.parametrize("mode", ["none", *MODES])
@pytest.mark.parametrize("dtype", [np.int8, "float8_e4m3fn", "nonsense", ">f4"])
def test_values_come_only_as_floats_of_16_to_64_bits(mode, dtype):
    with pytest.raises(kvf.InputError, match="float32, float16, bfloat16 or float64"):
        kvf.quantize(X, mode).dequantize(dtype)


@pytest.mark.parametrize("mode", MODES)
def test_no_tokens_dequantize_to_none(mode):
    q = kvf.quantize(X, mode)
    scales = q.scales if mode == "fp8_per_tensor" else q.scales[:0]
    empty = kvf.Quantized(q.codes[:0], scales, q.global_scale, q.recipe)
    assert empty.dequantize().shape == (0, 2, 16)
