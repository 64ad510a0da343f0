"""The scales of a paged cache: one per side where the mode has one per tensor; and mode none, which has none."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.fuzz import strategies
from tests.elements.compare import assert_same_codes, assert_same_values, bits
from tests.paged import (
    BLOCKS,
    HEAD_SIZE,
    HEADS,
    ONE_PER_MODE,
    SLOTS,
    VLLM,
    case,
    expected,
    kv,
    new_cache,
    refused,
    stored_dtype,
)

# --- per-tensor scales: one per cache and side -----------------------------------------------------------------------

PER_TENSOR = [config for config in ONE_PER_MODE if config.mode in {"fp8_per_tensor", "nvfp4"}]
per_tensor = pytest.mark.parametrize("config", PER_TENSOR, ids=lambda config: config.mode)
_DIVISOR = {"fp8_per_tensor": np.float32(448), "nvfp4": np.float32(2688)}


@per_tensor
def test_first_write_freezes_the_scales_of_all_its_tokens_padding_included(config):
    k, v = kv(config, 3)
    k[1], v[2] = 1000, -2000  # slots -1: not stored, but part of the tensor
    cache = new_cache(config)
    cache.write(k, v, [4, -1, -1])
    assert (cache.k_scale, cache.v_scale) == (
        np.float32(1000) / _DIVISOR[config.mode],
        np.float32(2000) / _DIVISOR[config.mode],
    )
    assert isinstance(cache.k_scale, np.float32)
    later_k, later_v = 50 * kv(config, 2, 1)[0], kv(config, 2, 1)[1]
    cache.write(later_k, later_v, [0, 1])
    assert cache.k_scale == np.float32(1000) / _DIVISOR[config.mode]
    found = cache.gather([0], 2)
    assert_same_values(found[0], expected(config, later_k, cache.k_scale))
    assert_same_values(found[1], expected(config, later_v, cache.v_scale))


@per_tensor
@pytest.mark.parametrize("where", ["constructor", "write"])
def test_given_scales_are_used_and_kept_apart(config, where):
    k, v = kv(config, 4)
    scales = {"k_scale": 0.3, "v_scale": np.array([0.011], np.float64)}
    cache = new_cache(config, **scales) if where == "constructor" else new_cache(config)
    cache.write(k, v, range(4), **({} if where == "constructor" else scales))
    assert (cache.k_scale, cache.v_scale) == (np.float32(0.3), np.float32(0.011))
    for side, x, scale in zip(cache.gather([0], 4), (k, v), (0.3, 0.011), strict=True):
        assert_same_values(side, expected(config, x, scale))


@per_tensor
def test_one_side_may_be_given_and_the_other_computed(config):
    k, v = kv(config, 2)
    cache = new_cache(config, v_scale=0.5)
    cache.write(k, v, [0, 1])
    assert (cache.k_scale, cache.v_scale) == (np.abs(k).max() / _DIVISOR[config.mode], 0.5)


@per_tensor
@pytest.mark.parametrize("side", ["k_scale", "v_scale"])
def test_another_scale_later_is_an_error_and_writes_nothing(config, side):
    cache = new_cache(config, k_scale=0.5, v_scale=0.5)
    cache.write(*kv(config, 2), [0, 1])
    before = cache.pages.copy()
    assert f"this cache has {side} 0.5; a write cannot use another one (0.25)" in refused(
        cache.write, *kv(config, 2, 1), [2, 3], **{side: 0.25}
    )
    np.testing.assert_array_equal(cache.pages, before)
    cache.write(*kv(config, 2, 1), [2, 3], **{side: 0.5 * (1 + 2.0**-30)})  # the same once it is float32


@per_tensor
@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 1e-60, [1.0, 2.0]])
def test_scale_that_cannot_be_is_refused_before_anything_is_written(config, scale):
    cache = new_cache(config, 0xAA)
    assert "scale" in refused(cache.write, *kv(config, 1), [0], v_scale=scale)
    assert (cache.pages == 0xAA).all()
    assert cache.k_scale is None
    assert "scale" in refused(new_cache, config, k_scale=scale)


@per_tensor
def test_gather_before_a_scale_is_known_isrefused(config):
    assert f"mode {config.mode} needs a k_scale" in refused(new_cache(config).gather, [0], 1)
    assert f"mode {config.mode} needs a v_scale" in refused(new_cache(config, k_scale=1.0).gather, [0], 1)


@pytest.mark.parametrize("config", [c for c in ONE_PER_MODE if c not in PER_TENSOR], ids=lambda config: config.mode)
def test_modes_without_a_tensor_scale_take_none(config):
    cache = new_cache(config, 0xAA)
    assert "takes no scale" in refused(cache.write, *kv(config, 1), [0], k_scale=1.0)
    assert "takes no scale" in refused(new_cache, config, v_scale=1.0)
    assert (cache.pages == 0xAA).all()
    cache.write(*kv(config, 1), [0])
    assert (cache.k_scale, cache.v_scale) == (None, None)


# --- mode none -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored, values, patterns",
    [
        (
            "float16",
            [1e30, -65520.0, 65519.0, 2.0**-25, -(3 * 2.0**-26), 1.0],
            [0x7C00, 0xFC00, 0x7BFF, 0, 0x8001, 0x3C00],
        ),
        (
            "bfloat16",
            [3.4e38, -3.4e38, 1.00390625, 1.01171875, -0.0, 1.0],
            [0x7F80, 0xFF80, 0x3F80, 0x3F82, 0x8000, 0x3F80],
        ),
    ],
)
def test_none_rounds_once_to_nearest_even_and_overflows_to_infinity(stored, values, patterns):
    config = case(VLLM, "none", "NHD", dtype=stored)
    x = np.zeros((1, HEADS, HEAD_SIZE), np.float32)
    x[0, 0, :6] = values
    cache = new_cache(config)
    cache.write(x, x, [0])
    for side in cache.gather([0], 1, dtype=stored_dtype(config)):
        assert bits(side)[0, 0, :6].tolist() == patterns


@pytest.mark.parametrize("stored", strategies.DTYPES, ids=strategies.DTYPE_IDS)
def test_none_stores_the_input_s_bits_where_the_dtype_is_the_same(stored):
    config = case(VLLM, "none", "NHD", dtype=stored.name)
    patterns = (
        np.random.default_rng(7).integers(0, 2**16, (SLOTS, HEADS, HEAD_SIZE * stored.itemsize // 2)).astype(np.uint16)
    )
    x = patterns.view(stored)
    cache = new_cache(config)
    cache.write(x, x, range(SLOTS))
    for side in cache.gather(range(BLOCKS), SLOTS, dtype=stored):
        assert_same_codes(bits(side), bits(x))  # NaN payloads too
