"""Certificates: no case comes above its bound, and the bounds are what the definitions say."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.attention import certificates as certify
from kvformat.attention.definition import CAUSAL, attend
from kvformat.elements.formats import ELEMENTS, element
from kvformat.errors import InputError
from kvformat.recipes.quantizer import quantize
from tests.attention import certified


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
    assert bound[0, 0, 1] == pytest.approx(2.0**-4, rel=1e-5)
    assert np.isfinite(certify.element_bound(quantize(x, "fp8_per_tensor"), scale_given=False)).all()


def test_a_flushed_nvfp4_block_is_bounded_by_what_makes_its_scale_zero():
    x = np.full((1, 1, 32), 1e-3, np.float32)
    x[..., :16] = 2688.0  # the other block sets g = 1
    stored = quantize(x, "nvfp4")
    assert stored.scales[0, 0, 1] == 0
    bound = certify.element_bound(stored, scale_given=False)
    assert (bound[0, 0, 16:] >= 1e-3).all()
    assert bound[0, 0, 16] == pytest.approx(6 * 2.0**-10, rel=1e-5)


@pytest.mark.parametrize("recipe", ["vllm-0.33/triton/int4_per_token_head", "torchao-0.18/float8/fp8_per_tensor"])
def test_a_recipe_without_a_certificate_is_refused_by_name(recipe):
    with pytest.raises(InputError, match=f"no certificate for {recipe}"):
        certify.element_bound(quantize(np.ones((1, 1, 32), np.float32), recipe))


def test_row_bounds_are_those_of_the_formats():
    assert certify.row_bound("int8", 128) == pytest.approx(math.sqrt(128) / 254)
    assert certify.row_bound("e4m3fn", 128) == pytest.approx(1 / 17)


@pytest.mark.parametrize(("recipe", "fmt"), [("int8_per_token_head", "int8"), ("fp8_per_token_head", "e4m3fn")])
def test_no_row_is_off_by_more_than_the_row_bound(recipe, fmt):
    # within three binades of amax there are no subnormals
    rng = np.random.default_rng(0)
    x = (rng.uniform(1, 8, (500, 2, 64)) * rng.choice([-1, 1], (500, 2, 64))).astype(np.float32)
    error = quantize(x, recipe).dequantize(np.float64) - x
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
