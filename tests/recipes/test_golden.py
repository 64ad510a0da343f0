"""The golden recipes: against plain NumPy on a million values, against the exact twin on values chosen to hurt."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvformat as kvf
from kvformat.fuzz import strategies
from kvformat.recipes import exact
from kvformat.recipes import recipe as find_recipe
from tests.elements.compare import assert_same_codes, assert_same_values, bits
from tests.recipes import reference

MODES = ("fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
MAY_BE_GIVEN = ("fp8_per_tensor", "nvfp4")


def assert_same_quantized(found, codes, scales, global_scale, x=None):
    """Codes, scales and global scale, bit for bit; a NaN scale as a class."""
    assert_same_codes(found.codes, codes, x)
    if scales.dtype == np.float32:
        assert_same_values(found.scales, scales)
    else:
        assert_same_codes(found.scales, scales)
    assert isinstance(found.global_scale, np.float32)
    assert bits(np.array(found.global_scale)) == bits(np.array(global_scale, np.float32))


def _rows(dtype):
    """2^20 values in rows of 128: every size of row, ties after scaling, special values sprinkled in."""
    rng = np.random.default_rng(31)
    rows = 1 << 13
    x = rng.standard_normal((rows, 128)).astype(np.float32)
    x *= np.exp2(rng.integers(-12, 12, (rows, 1))).astype(np.float32)
    # rows whose scale is a power of two, full of midpoints of each format, exact and 1 ulp off
    for start, largest, steps in ((0, 448.0, 16), (1000, 127.0, 2), (2000, 6.0, 4)):
        part = rng.integers(-int(largest * steps), int(largest * steps), (1000, 128)) / np.float32(steps)
        part[:, 0] = largest
        near = [part, np.nextafter(part, np.float32(np.inf)), np.nextafter(part, np.float32(-np.inf))]
        part = np.choose(rng.integers(0, 3, part.shape), near)
        part[:, 0] = largest
        x[start : start + 1000] = part * np.exp2(rng.integers(-40, 40, (1000, 1)))
    # rows around the smallest and the largest scales
    x[3000:3500] = rng.integers(-2000, 2000, (500, 128)) * 2.0**-149
    x[3500:4000] = rng.standard_normal((500, 128)) * 2.0**120
    x[4000:4100] = 0
    for value in (np.nan, np.inf, -np.inf, 0.0, -0.0):
        x[rng.integers(4000, rows, 300), rng.integers(0, 128, 300)] = value
    x[4100:4110] = np.nan
    x[4110:4120] = -np.inf
    return strategies.cast(x, dtype).reshape(rows // 8, 8, 128)


@pytest.fixture(scope="module", params=strategies.DTYPES, ids=strategies.DTYPE_IDS)
def million(request):
    return _rows(request.param)


@pytest.mark.parametrize("mode", MODES)
def test_a_million_values_quantize_as_plain_numpy_does(million, mode):
    assert_same_quantized(kvf.quantize(million, mode), *reference.quantize(million, mode), million)


@pytest.mark.parametrize("scale", [1.0, 0.037, 2.0**-149, 3.0 * 2.0**-149, 5.6e37, 3.4e38])
@pytest.mark.parametrize("mode", MAY_BE_GIVEN)
def test_a_million_values_quantize_as_plain_numpy_does_with_a_given_scale(million, mode, scale):
    x = million[:600]
    assert_same_quantized(kvf.quantize(x, mode, scale=scale), *reference.quantize(x, mode, scale), x)


@pytest.mark.parametrize("mode", MODES)
def test_a_million_codes_dequantize_as_plain_numpy_does(million, mode):
    expected = reference.quantize(million, mode)
    assert_same_values(kvf.quantize(million, mode).dequantize(), reference.dequantize(expected, mode))


@pytest.mark.parametrize("prefix", ["golden", pytest.param("exact", marks=pytest.mark.slow)])  # exact: a kernel more
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60)
@given(data=st.data())
def test_engine_is_its_exact_twin(mode, prefix, data):
    # exact/* is compiled for float32 only: the widening is the same code, and golden/* judges it
    dtype = strategies.FLOAT32 if prefix == "exact" else None
    x = data.draw(strategies.kv_tensors(mode, dtype=dtype), "x")
    scale = data.draw(st.none() | strategies.scales(), "scale") if mode in MAY_BE_GIVEN else None
    recipe = find_recipe(f"{prefix}/{mode}")
    assert_same_quantized(kvf.quantize(x, recipe, scale=scale), *exact.quantize(x, recipe, scale), x)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=60)
@given(data=st.data())
def test_engine_is_plain_numpy_on_values_chosen_to_hurt(mode, data):
    x = data.draw(strategies.kv_tensors(mode), "x")
    assert_same_quantized(kvf.quantize(x, mode), *reference.quantize(x, mode), x)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40)
@given(data=st.data())
def test_dequantize_is_its_exact_twin(mode, data):
    x = data.draw(strategies.kv_tensors(mode, tokens=(1, 2), heads=1, head_dim=16), "x")
    q = kvf.quantize(x, mode)
    values = q.dequantize()
    decoded = kvf.decode(q.scales, "e4m3fn") if mode == "nvfp4" else q.scales
    for place in np.ndindex(*x.shape):
        if mode == "nvfp4":
            scales = {"g": float(q.global_scale), "bs": float(decoded[place[0], place[1], place[2] // 16])}
        else:
            scales = {"s": float(decoded[0] if mode == "fp8_per_tensor" else decoded[place[:2]])}
        named = {name: exact.number(value) for name, value in scales.items()}
        expected = float(exact.dequantize(int(q.codes[place]) % 256, named, q.recipe))
        assert_same_values(np.float64(values[place]), np.float64(expected))


def test_none_keeps_the_bits_of_every_dtype():
    for dtype in strategies.DTYPES:
        unsigned = np.dtype(f"u{dtype.itemsize}")
        patterns = np.random.default_rng(3).integers(0, np.iinfo(unsigned).max, 4096, unsigned, endpoint=True)
        x = patterns.view(dtype).reshape(4, 8, 128)
        q = kvf.quantize(x, "none")
        assert q.codes.dtype == dtype
        assert_same_codes(bits(q.codes), bits(x))
        assert (q.scales.shape, q.scales.dtype, float(q.global_scale)) == ((0,), np.float32, 1.0)
        q.codes[...] = 0
        assert_same_codes(bits(x).reshape(-1), patterns)  # a copy


@pytest.mark.parametrize("prefix", ["golden", "exact"])
@pytest.mark.parametrize("mode", ["none", *MODES])
def test_a_mode_name_stands_for_its_golden_recipe(mode, prefix):
    assert kvf.recipe(mode).name == f"golden/{mode}"
    assert kvf.recipe(f"{prefix}/{mode}").mode == mode
    x = np.ones((1, 1, 16), np.float32)
    assert kvf.quantize(x, mode).recipe == kvf.recipe(f"golden/{mode}")


@pytest.mark.parametrize(
    "mode, codes, scales",
    [
        ("fp8_per_tensor", np.uint8, ((1,), np.float32)),
        ("fp8_per_token_head", np.uint8, ((3, 2), np.float32)),
        ("int8_per_token_head", np.int8, ((3, 2), np.float32)),
        ("nvfp4", np.uint8, ((3, 2, 2), np.uint8)),
    ],
)
def test_shapes_and_dtypes_are_those_of_the_interface(mode, codes, scales):
    q = kvf.quantize(np.ones((3, 2, 32), np.float32), mode)
    assert (q.codes.shape, q.codes.dtype) == ((3, 2, 32), codes)
    assert (q.scales.shape, q.scales.dtype) == scales
    assert isinstance(q.global_scale, np.float32)
    assert (q.global_scale == 1) == (mode != "nvfp4")
