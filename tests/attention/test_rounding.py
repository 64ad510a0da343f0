"""The bound that judges outputs: no kernel of its model is beyond it, the worst ones come near it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from kvformat.attention.definition import CAUSAL
from kvformat.attention.rounding import EXPONENTIAL, Kernel, allowed
from tests.attention import rounded


@given(rounded.cases())
def test_no_kernel_of_the_model_is_beyond_the_bound(case):
    found = rounded.ratios(case)
    assert all(ratio <= 1 for ratio in found.values()), found


def plain(**settings):
    return Kernel.of({"operands": "float32", **settings}, "float32", "float32")


def test_the_worst_float32_kernels_reach_the_bound():
    case = rounded.Case(0, 12, 4, 1.0, 1.0, "float32", "float32", "float32", "float32", None, sink=False, part=1.0)
    found = [rounded.ratios(each)["judged output"] for each in rounded.case_variants(case)]
    assert 0.5 < max(found) <= 1, found


def test_the_worst_bfloat16_kernels_reach_the_bound():
    case = rounded.Case(0, 12, 4, 1.0, 1.0, "float32", "bfloat16", "bfloat16", "bfloat16", None, sink=True, part=1.0)
    found = [rounded.ratios(each)["judged output"] for each in rounded.case_variants(case)]
    assert 0.5 < max(found) <= 1, found


def test_the_error_of_the_exponential_is_in_the_bound():
    # two keys of logit 0 and V of +-1: an exponential 2^-20 too large and one as much too small move 0 by 2^-20; the
    # 12 roundings of each sum add 24 u, about as much. Both together are reached by what is below and no more
    zeros, value = np.zeros((1, 1, 4)), np.array([1.0, -1.0]).reshape(2, 1, 1)
    bound = allowed(zeros, np.zeros((2, 1, 4)), value, CAUSAL, 0.5, plain()).bound[0, 0, 0]
    sums = 24 * 2.0**-24
    assert EXPONENTIAL + sums <= bound <= 1.01 * (EXPONENTIAL + sums) + 2.0**-24 * 1e-3


def test_the_bound_is_the_sharper_one_of_two_where_many_keys_share_the_weight():
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(1, 1, 64)), rng.normal(size=(2000, 1, 64)), rng.normal(size=(2000, 1, 8))
    kernel = plain(operands="bfloat16", probabilities="float32")
    bound = allowed(query, key, value, CAUSAL, 0.125, kernel).bound
    largest = 2.0**-8 * 0.125 * (np.abs(key) @ np.abs(query[0, 0])).max()
    by_range = np.tanh(2 * largest / 4) * np.ptp(value[:, 0], axis=0)
    assert (bound[0, 0] < by_range / 2).all()


@pytest.mark.parametrize(
    ("output", "half"), [("float16", 2.0**-25), ("bfloat16", 2.0**-134), ("float8_e4m3fn", 2.0**-10)]
)
def test_half_the_smallest_subnormal_of_the_output_is_always_allowed(output, half):
    kernel = Kernel.of({}, "float32", output)
    bound = allowed(np.zeros((1, 1, 4)), np.zeros((1, 1, 4)), np.zeros((1, 1, 4)), CAUSAL, 0.5, kernel).bound
    assert (bound == half).all()


@pytest.mark.parametrize("probabilities", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_probabilities_that_round_to_zero_are_in_the_bound(probabilities):
    # 64 keys of weight e^-9 beside one of weight 1: in e4m3 all of them are lost
    key = np.where(np.arange(65) == 0, 0.0, -9.0).reshape(65, 1, 1)
    value = np.where(np.arange(65) == 0, 0.0, 1.0).reshape(65, 1, 1)
    kernel = plain(probabilities=probabilities)
    found = allowed(np.ones((1, 1, 1)), key, value, CAUSAL, 1.0, kernel)
    lost = 64 * np.exp(-9) / (1 + 64 * np.exp(-9))
    if probabilities == "float8_e4m3fn":
        assert found.bound[0, 0, 0] >= lost
    else:
        assert found.bound[0, 0, 0] < lost


@pytest.mark.parametrize(
    ("accumulate", "keys"), [("float16", 4096), ("bfloat16", 4096), ("fp8_tensor_core_sm90", 4096)]
)
def test_any_number_of_keys_leaves_a_bound(accumulate, keys):
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(1, 1, 8)), rng.normal(size=(keys, 1, 8)), rng.normal(size=(keys, 1, 2))
    bound = allowed(query, key, value, CAUSAL, 0.35, plain(accumulate=accumulate)).bound
    assert np.isfinite(bound).all()
