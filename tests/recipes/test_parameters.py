"""Several parameters for each group, in any block shape: the engine gives what the exact twin gives."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.errors import InputError
from kvformat.recipes import exact, grouping
from kvformat.recipes.entry import parse_recipe
from kvformat.recipes.program import granularity
from tests.recipes.parameters import (
    BY_CHANNEL,
    FLAT,
    FROM_CODES,
    GIVEN_BY_CHANNEL,
    TWO_IN_ONE,
    ZERO_POINT,
    ZERO_POINT_TEXT,
    same,
)

X = np.random.default_rng(7).standard_normal((5, 2, 64)).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(ml_dtypes.bfloat16, marks=pytest.mark.slow)])
def test_one_program_makes_scale_and_bias_and_each_is_stored_in_the_input_s_dtype(dtype):
    q = same(X.astype(dtype), TWO_IN_ONE)
    assert {name: (each.shape, each.dtype) for name, each in q.params.items()} == {
        "s": ((5, 2, 2), dtype), "b": ((5, 2, 2), dtype)
    }  # fmt: skip
    assert np.abs(q.dequantize() - X).max() < 0.3


@pytest.mark.slow  # a kernel of its own
def test_an_integer_zero_point_is_stored_as_int8():
    q = same(X, ZERO_POINT)
    assert q.params["zp"].dtype == np.int8
    assert q.params["zp"].shape == (5, 2, 1)
    assert np.abs(q.dequantize() - X).max() < 0.03


@pytest.mark.parametrize("tokens", [1, 32, 70])
def test_groups_along_tokens_have_a_partial_last_one(tokens):
    x = np.random.default_rng(tokens).standard_normal((tokens, 2, 6)).astype(np.float32)
    q = same(x, BY_CHANNEL)
    assert q.params["s"].shape == q.params["zp"].shape == (-(-tokens // 32), 2, 6)
    assert np.abs(q.dequantize() - x).max() < 0.03


@pytest.mark.slow  # a kernel of its own
def test_runs_of_the_flattened_order_cross_rows():
    x = np.random.default_rng(1).standard_normal((3, 2, 40)).astype(np.float32)
    q = same(x, FLAT)
    assert q.params["s"].shape == (4,)
    # the heads-first order: the first run is row 0 of head 0 and the first 24 of row 1
    first = np.concatenate([x[0, 0], x[1, 0, :24]])
    assert q.params["s"][0] == np.float32((first.max() - first.min()) / np.float32(15))


@pytest.mark.slow  # a kernel of its own
def test_a_parameter_made_from_the_codes_and_codes_that_a_condition_leaves_undefined():
    x = X.copy()
    x[1] *= 1e-5
    q = same(x, FROM_CODES)
    assert q.undefined is not None
    assert q.undefined.shape == (5, 2, 2)
    assert q.undefined[1].all()
    assert not q.undefined[[0, 2, 3, 4]].any()
    # least squares: no scale near the stored one has a smaller weighted error
    codes, w = q.codes[0, 0, :32].astype(np.float64), x[0, 0, :32].astype(np.float64) ** 2
    best = (w * codes * x[0, 0, :32]).sum() / (w * codes * codes).sum()
    assert abs(float(q.params["d"][0, 0, 0]) - best) <= best * 2.0**-10


@pytest.mark.parametrize("shape", [(1, 2, 64), (1, 1, 64), (1, 2, 1), (1, 1, 1), (1,), ()])
def test_parameters_are_given_for_the_tensor_the_head_or_the_channel(shape):
    given = np.linspace(0.01, 0.1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    q = same(X, GIVEN_BY_CHANNEL, params={"s": given})
    assert (q.params["s"] == np.broadcast_to(given, (1, 2, 64))).all()
    wanted = np.clip(np.rint(X * (np.float32(1) / given)), -128, 127)
    assert (q.codes == wanted).all()


@pytest.mark.parametrize("params, words", [
    ({"t": 1.0}, "takes no parameter 't'; it takes s"),
    ({"s": np.ones((1, 3, 64))}, "s of test/given must have shape (1, 2, 64) here; got (1, 3, 64)"),
    ({"s": np.ones(64)}, "must have shape (1, 2, 64)"),
    ({"s": [[["a"]]]}, "parameter s must be numbers"),
    ({"s": np.inf}, "parameter s must be finite"),
])  # fmt: skip
def test_given_parameters_that_do_not_fit_are_refused(params, words):
    with pytest.raises(InputError, match=re.escape(words)):
        kvf.quantize(X, GIVEN_BY_CHANNEL, params=params)


@pytest.mark.parametrize("share", [
    "per_tensor", "per_head", "per_channel", "per_token", "per_token_head", "per_block", "(32, 1, 1)", "(2, 2, 3)",
    "(*, 2, 5)", "7 of (dims, heads, tokens)", "64 of (heads, tokens, dims)",
])  # fmt: skip
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 16), (33, 2, 20)])
def test_gather_and_scatter_are_inverse_and_follow_the_definition(share, shape):
    how = granularity(share)
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    groups = grouping.gather(how, x)
    assert (grouping.scatter(how, groups, shape) == x).all()
    params, places = exact._groups(how, shape)
    assert params == grouping.grid(how, shape)
    first = grouping.place(how, [rows[:, 0] for rows in groups], shape)
    assert first.reshape(-1).tolist() == [int(x[group[0]]) for group in places]
    taken = grouping.take(how, first, shape)
    assert all((a == rows[:, 0]).all() for a, rows in zip(taken, groups, strict=True))


def test_block_shapes_have_their_names():
    assert granularity("(1, 1, *)").name == "per_token_head"
    assert granularity("(*, 1, 1)") is granularity("per_channel")
    assert granularity("(32, 1, 1)").block == (32, 1, 1)
    for bad in ("(0, 1, 1)", "(1, 1)", "(1,1,1)", "64 of (tokens, tokens, dims)"):
        with pytest.raises(InputError, match="a granularity is a name, a block or a run"):
            granularity(bad)


def _levels(*granularities):
    scales = [
        {"name": f"s{i}", "granularity": each, "program": f"s{i} = amax(x)"} for i, each in enumerate(granularities)
    ]
    return {
        "name": "test/levels", "mode": "none", "element": "int8", "source": "a test", "scales": scales,
        "code": "c = encode(x, int8)", "value": "v = mul(c, s0)",
    }  # fmt: skip


@pytest.mark.parametrize("granularities, words", [
    (("(32, 1, 1)", "(24, 1, 1)"), "s1 of (24, 1, 1) does not divide s0 of (32, 1, 1)"),
    (("per_block", "(32, 1, 1)"), "scale s0 lies within a row and s1 does not"),
])  # fmt: skip
def test_blocks_that_do_not_nest_are_refused(granularities, words):
    with pytest.raises(InputError, match=re.escape(words)):
        parse_recipe(_levels(*granularities))


@pytest.mark.slow
@pytest.mark.parametrize("granularities", [
    ("per_tensor", "per_channel", "(32, 1, 1)"), ("per_token_head", "per_block"), ("per_head", "(2, 1, 8)"),
    ("per_tensor", "64 of (heads, tokens, dims)"),
])  # fmt: skip
def test_levels_nest_and_each_group_reads_those_around_it(granularities):
    described = _levels(*granularities)
    last = len(granularities) - 1
    described["scales"][last]["program"] = f"s{last} = div(amax(x), mul(127, s{last - 1}))"
    described["code"] = f"c = encode(div(x, mul(s{last}, s{last - 1})), int8)"
    described["value"] = f"v = mul(c, mul(s{last}, s{last - 1}))"
    x = np.random.default_rng(3).standard_normal((40, 2, 16)).astype(np.float32)
    q = same(x, parse_recipe(described))
    assert np.abs(q.dequantize() - x).max() < 0.02


def test_a_page_without_a_place_for_a_second_parameter_refuses_the_recipe():
    layout = kvf.layout("vllm-0.33", mode="int8_per_token_head", block_size=16, num_kv_heads=2, head_size=64)
    how = parse_recipe({**ZERO_POINT_TEXT, "mode": "int8_per_token_head"})
    with pytest.raises(
        InputError, match=r"stores 1 zps of 8 bits for 64 dims; layout vllm-0\.33 in mode int8_per_token_head has none"
    ):
        kvf.PagedCache(layout, 1).write(X, X, np.arange(5), recipe=how)
