"""K and V through pages: what comes back is what the recipe says, in every layout, and outliers stay where they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.attention.definition import attend, compare
from kvformat.layouts import LAYOUTS
from kvformat.modes import MODES
from kvformat.recipes.quantizer import quantize
from kvformat.simulate.debias import Debias
from kvformat.simulate.experiments import scale
from kvformat.simulate.experiments.result import Settings
from kvformat.simulate.profiles import PROFILES, profile
from kvformat.simulate.storage import Side, Storage

QUANTIZED = [mode for mode in MODES if mode != "none"]


def normal(seed, tokens=33, heads=2, dims=64):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(0, 1, (tokens, heads, dims)).astype(np.float32) for _ in range(2))


@pytest.mark.parametrize(
    ("layout", "mode"),
    [(name, mode) for name in ("vllm-0.33", "flashinfer") for mode, _ in LAYOUTS[name].modes if mode in QUANTIZED],
)
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_pages_give_back_what_the_recipe_stores(layout, mode, order):
    key, value = normal(1)
    stored = Storage(Side(f"golden/{mode}"), Side(f"golden/{mode}"), layout, order).through_pages(key, value)
    for x, found in zip((key, value), stored, strict=True):
        assert np.array_equal(found, quantize(x, f"golden/{mode}").dequantize())


def test_two_recipes_give_the_key_of_one_and_the_value_of_the_other():
    key, value = normal(2)
    k, v = Storage(Side("golden/int8_per_token_head"), Side("golden/nvfp4")).through_pages(key, value)
    assert np.array_equal(k, quantize(key, "golden/int8_per_token_head").dequantize())
    assert np.array_equal(v, quantize(value, "golden/nvfp4").dequantize())


def test_bytes_per_token_are_those_of_the_pages():
    # 8 heads x 128: 4096 in bf16; 2048 + 64 bytes of float32 scales; 4.5 bits an element
    sizes = {mode: Storage.of(f"golden/{mode}").bytes_per_token(8, 128) for mode in MODES}
    assert sizes == {
        "none": 4096,
        "fp8_per_tensor": 2048,
        "fp8_per_token_head": 2112,
        "int8_per_token_head": 2112,
        "nvfp4": 1152,
    }


@given(size=st.sampled_from([1e-3, 10.0, 1e4, 1e30]), token=st.integers(0, 32), mode=st.sampled_from(["int8", "fp8"]))
def test_an_outlier_token_of_any_size_leaves_the_others_alone_per_token_head(size, token, mode):
    key, _ = normal(3)
    changed = key.copy()
    changed[token] *= np.float32(size)
    a, b = (quantize(x, f"{mode}_per_token_head") for x in (key, changed))
    others = np.arange(len(key)) != token
    assert np.array_equal(a.codes[others], b.codes[others])
    assert np.array_equal(a.scales[others], b.scales[others])


def test_int8_and_fp8_cross_at_an_outlier_channel_near_12_sigma():
    result = scale.run(Settings(tokens=256), lambda _done, _total: None)
    found = scale.crossover(list(result.rows))
    assert found is not None
    assert 10.5 < found < 13.5


def test_debiased_int8_has_less_than_a_tenth_of_the_kl_on_keys_with_a_large_bias():
    sample = profile("qwen_edge").sample(0, 64)
    exact = attend(sample.query, sample.key, sample.value)
    storage, debias = Storage.of("golden/int8_per_token_head"), Debias(sample.bias, sample.rope)
    plain, without = (
        compare(exact, attend(sample.query, *storage.through_pages(sample.key, sample.value, how))).means()["kl"]
        for how in (None, debias)
    )
    assert without * 10 < plain


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_gives_the_sink_the_mass_that_was_asked_for(name):
    sample = profile(name).sample(1, 48, sink=0.3)
    mass = attend(sample.query, sample.key, sample.value).probabilities[:, 1:, 0]
    np.testing.assert_allclose(mass, 0.3, atol=1e-4)


def test_the_llama_profile_looks_like_smollm2_and_qwen_edge_has_its_bias():
    key = np.abs(profile("llama").sample(0, 256, head_dim=64).key)
    channels = key.max(axis=0)
    assert 8 < key.max() < 24
    assert 2.5 < (channels.max(axis=1) / np.median(channels, axis=1)).mean() < 7
    edge = np.abs(profile("qwen_edge").sample(0, 64).bias)
    assert 80 < edge.max() < 221
