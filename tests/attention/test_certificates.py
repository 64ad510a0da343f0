"""Certificates: no case comes above its bound, and the bounds are what the definitions say."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.attention import certificates as certify
from kvformat.attention.definition import CAUSAL, attend
from kvformat.elements.formats import ELEMENTS, element
from kvformat.errors import InputError
from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.program import Program, granularity
from kvformat.recipes.quantizer import quantize
from tests.attention import certified


def _slow_if(slow, name):
    """A kernel is compiled for each recipe, about a second: the golden ones are in the fast tests."""
    return pytest.param(name, marks=[pytest.mark.slow] if slow else [])


def holds(ratios):
    assert all(ratio <= 1 for ratio in ratios.values()), ratios


@given(certified.cases(certified.GOLDEN))
def test_no_certificate_from_bytes_is_violated(case):
    holds(certified.ratios(case))


@given(certified.perturbations())
def test_no_certificate_from_logit_errors_is_violated(pair):
    holds(certified.softmax_ratios(*pair))


@given(certified.evictions())
def test_eviction_is_the_equality_that_it_says(case):
    holds(certified.eviction_ratios(*case))


@pytest.mark.slow
@given(case=st.deferred(lambda: certified.cases(certified.certified_recipes())))
def test_no_certificate_of_any_certified_recipe_is_violated(case):
    holds(certified.ratios(case))


@pytest.mark.parametrize("name", [name for name, fmt in ELEMENTS.items() if fmt.kind != "exponent"])
def test_half_gaps_are_half_the_distance_to_the_farther_neighbour(name):
    fmt = element(name)
    values = sorted({Fraction(fmt.value(code)) for code in range(fmt.codes) if math.isfinite(fmt.value(code))})
    for code, found in enumerate(certify.half_gaps(fmt)):
        value = fmt.value(code)
        if not math.isfinite(value):
            assert found == math.inf
            continue
        place = values.index(Fraction(value))
        neighbours = [abs(values[i] - values[place]) for i in (place - 1, place + 1) if 0 <= i < len(values)]
        assert Fraction(float(found)) == max(neighbours) / 2


def test_the_largest_code_of_a_given_scale_has_no_bound():
    x = np.array([[[1000.0, 1.0]]], np.float32)
    given_scale = quantize(x, "fp8_per_tensor", scale=1.0)
    bound = certify.element_bound(given_scale)
    assert np.isinf(bound[0, 0, 0])
    assert 2.0**-4 <= bound[0, 0, 1] <= 2.0**-4 * (1 + 1e-5)
    assert np.isfinite(certify.element_bound(quantize(x, "fp8_per_tensor"), scale_given=False)).all()


def test_a_flushed_nvfp4_block_is_bounded_by_what_makes_its_scale_zero():
    x = np.full((1, 1, 32), 1e-3, np.float32)
    x[..., :16] = 2688.0  # the other block sets g = 1
    stored = quantize(x, "nvfp4")
    assert stored.scales[0, 0, 1] == 0
    bound = certify.element_bound(stored, scale_given=False)
    assert (bound[0, 0, 16:] >= 1e-3).all()
    assert 6 * 2.0**-10 <= bound[0, 0, 16] <= 6 * 2.0**-10 * (1 + 1e-5)


@pytest.mark.parametrize(
    "name",
    [_slow_if(True, name) for name in ("ocp-mx-1.0/floor/mxfp8", "torchao-0.18/floor/mxfp8", "ocp-mx-1.0/even/mxfp8")],
)
def test_a_scale_that_is_rounded_down_lets_the_largest_code_stand_for_more(name):
    # 1.99 under the scale 2^-8 is 509, beyond 448: it decodes to 1.75
    x = np.full((1, 1, 32), 1.0, np.float32)
    x[0, 0, 0] = 1.99
    stored = quantize(x, name)
    error = np.abs(stored.dequantize(np.float64) - x)
    bound = certify.element_bound(stored)
    assert (error <= bound).all()
    assert 2.0**-4 <= bound[0, 0, 0] < 0.26  # amax < 2, so the bound is finite: 2 - 1.75
    assert bound[0, 0, 1] <= 2.0**-4 * (1 + 1e-4)


#: a transform, a zero point, scales that are multiplied by; truncation
REFUSED = {
    "vllm-0.33/emulation/nvfp4",
    "vllm-0.33/triton/int4_per_token_head",
    "flashinfer-0.7/trace-reference/nvfp4",
    "flashinfer-0.7/rope-quantize/fp8_per_tensor",
    "tensorrt-llm-snapshot/cvt-warp/nvfp4",
    "tensorrt-llm-snapshot/cvt-warp-exact/nvfp4",
    "tensorrt-llm-snapshot/kv/fp8_per_tensor",
    "transformer-engine-d0067d0d/reference/nvfp4",
    "transformer-engine-d0067d0d/cuda/nvfp4",
    "transformer-engine-d0067d0d/reference-4over6-mae/nvfp4",
    "transformer-engine-d0067d0d/reference-4over6-mse/nvfp4",
    "torchao-0.18/float8/fp8_per_tensor",
    "torchao-0.18/float8/fp8_per_token_head",
    "compressed-tensors-0.20/nvfp4",
    "sglang-0.5/triton-group/int8_per_tile",
    "vllm-0.32/cpu/fp8_per_tensor",
    *(f"ggml-0.25/{build}/q8_0" for build in ("reference", "avx", "neon", "wasm")),
    *(f"ggml-0.25/reference/{mode}" for mode in ("q4_0", "q4_1", "q5_0", "q5_1")),
    *(name for name in names() if name.startswith(("mlx", "openvino", "executorch", "onnxruntime"))),
}


@pytest.mark.parametrize("name", [_slow_if(not x.startswith("golden/"), x) for x in names() if x not in REFUSED])
def test_no_element_of_any_certified_recipe_is_beyond_its_bound(name):
    rng = np.random.default_rng(7)
    takes = any(level.may_be_given for level in recipe(name).levels)
    for given_scale in (None, 2.0**-9, 1.0) if takes else (None,):
        x = (rng.normal(0, 1, (40, 2, 128)) * 2.0 ** rng.integers(-3, 4, (40, 2, 1))).astype(np.float32)
        stored = quantize(x, name, scale=given_scale)
        bound = certify.element_bound(stored, scale_given=given_scale is not None)
        assert (np.abs(stored.dequantize(np.float64) - x) <= bound).all()


@pytest.mark.slow  # a kernel for each
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("vllm-0.33/csrc/indexer_k", (2, 1, 256)),
        ("vllm-0.33/csrc/fp8_ds_mla", (2, 1, 256)),
        ("sglang-0.5/mla-store/fp8_unscaled", (2, 1, 64)),
        *(
            (name, (3, 2, 128))
            for name in names()
            if any(x.granularity.name == "per_head" for x in recipe(name).levels)
        ),
    ],
)
def test_scales_of_every_granularity_are_laid_over_their_elements(name, shape):
    x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    x[:, -1, -1] *= 100  # no two groups share a scale
    stored = quantize(x, name)
    bound = certify.element_bound(stored, scale_given=False)
    assert bound.shape == shape
    assert (np.abs(stored.dequantize(np.float64) - x) <= bound).all()


def test_the_largest_int8_code_is_127_and_has_no_bound_under_a_given_scale():
    how = replace(recipe("int8_per_token_head"), name="given int8")
    level = replace(how.levels[0], granularity=granularity("per_tensor"), may_be_given=True)
    stored = quantize(np.array([[[1000.0, 1.0]]], np.float32), replace(how, levels=(level,)), scale=1.0)
    assert stored.codes.tolist() == [[[127, 1]]]
    bound = certify.element_bound(stored)
    assert np.isinf(bound[0, 0, 0])
    assert 0.5 <= bound[0, 0, 1] <= 0.5 * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["q = round(div(x, s), toward_zero)", "q = round(add(div(x, s), 0.25), toward_zero)"])
def test_codes_that_are_cut_off_are_refused(line):
    how = recipe("int8_per_token_head")
    cut = replace(how, name="cut", code=Program.parse(f"{line}\nc = encode(clamp(q, -127, 127), int8)"))
    with pytest.raises(InputError, match="no certificate for cut: its codes are cut off, not rounded to nearest"):
        certify.element_bound(quantize(np.ones((1, 1, 32), np.float32), cut))


@pytest.mark.parametrize("name", [_slow_if(True, x) for x in sorted(REFUSED)])
def test_a_recipe_whose_codes_are_not_the_nearest_is_refused_by_name(name):
    with pytest.raises(InputError, match=f"^there is no certificate for {re.escape(name)}: its (codes|values) are "):
        certify.element_bound(quantize(np.ones((1, 1, 128), np.float32), name))


def test_a_stored_inf_leaves_an_infinite_range_and_no_nan():
    value, bound = np.array([[[np.inf, 1.0]], [[2.0, 2.0]]]), np.array([[[np.inf, 0.5]], [[0.5, 0.5]]])
    for sink in (False, True):
        ranges = certify.value_ranges(value, bound, np.ones((1, 2), bool), 1, sink=sink)
        assert ranges[0, 0].tolist() == [np.inf, 2.5 if sink else 2.0]


def test_a_negative_scale_of_the_logits_bounds_as_a_positive_one():
    query, bound = np.ones((1, 1, 4)), np.full((3, 1, 4), 0.25)
    assert (certify.logit_bound(query, bound, -0.5) == 0.5).all()


def test_row_bounds_are_those_of_the_formats():
    assert certify.row_bound("int8", 128) == math.sqrt(128) / 254
    assert certify.row_bound("e4m3fn", 128) == 1 / 17


@pytest.mark.parametrize(("name", "fmt"), [("int8_per_token_head", "int8"), ("fp8_per_token_head", "e4m3fn")])
def test_no_row_is_off_by_more_than_the_row_bound(name, fmt):
    # within three binades of amax there are no subnormals
    rng = np.random.default_rng(0)
    x = (rng.uniform(1, 8, (500, 2, 64)) * rng.choice([-1, 1], (500, 2, 64))).astype(np.float32)
    error = quantize(x, name).dequantize(np.float64) - x
    ratio = np.linalg.norm(error, axis=2) / np.linalg.norm(x.astype(np.float64), axis=2)
    assert ratio.max() <= certify.row_bound(fmt, 64) * (1 + 1e-6)


def test_bounds_of_a_whole_layer_need_nothing_but_its_bytes():
    rng = np.random.default_rng(3)
    query, key, value = (rng.normal(0, 1, (20, heads, 32)).astype(np.float32) for heads in (4, 2, 2))
    stored_key, stored_value = (quantize(x, "int8_per_token_head") for x in (key, value))
    exact = attend(query, key, value)
    other = attend(query, stored_key.dequantize(), stored_value.dequantize())
    tv, kl, output = certify.attention_bounds(
        query, stored_key, stored_value, other.probabilities, CAUSAL, scale=32**-0.5
    )
    assert (np.abs(other.probabilities - exact.probabilities).sum(axis=2) / 2 <= tv + 1e-12).all()
    assert (np.abs(other.output - exact.output) <= output + 1e-12).all()
    assert (kl <= tv * 4).all()
    assert tv.max() < 0.1


def test_the_bound_on_kl_is_reached():
    # a small change of two keys of the same weight: KL = omega^2 / 8 to second order
    p, omega = np.array([0.5, 0.5]), 0.01
    q = p * np.exp([omega, 0]) / (p * np.exp([omega, 0])).sum()
    kl = (p * np.log(p / q)).sum()
    assert 0.9999 < kl / certify.kl_bound(omega) <= 1


def test_the_slack_is_twice_the_roundings_between_an_input_and_its_value():
    # int8: amax / 127, x / s, c * s: three of 2^-24; a zero, where h is 1/2 and |c| + h too, shows it alone
    stored = quantize(np.array([[[127.0, 0.0, 0.0, 0.0]]], np.float32), "int8_per_token_head")
    bound = certify.element_bound(stored)[0, 0, 1]
    assert bound == pytest.approx(0.5 * (1 + 2 * 3 * 2.0**-24), rel=1e-12)


def test_a_float16_number_is_off_by_half_the_smallest_subnormal():
    stored = quantize(np.full((1, 1, 4), 2.0**-24, np.float16), "none")
    assert (certify.element_bound(stored) == 2.0**-25).all()
