"""Recipes as text: what parses, what is refused and with which words; recipes of one's own."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import kvformat as kvf
from kvformat.recipes import Level, Program, Recipe, catalogue, exact
from kvformat.recipes.program import granularity, is_constant
from tests.elements.compare import assert_same_codes, assert_same_values


def _lines(text):
    return str(Program.parse(text)).splitlines()


def _message(action, *arguments, **keywords):
    with pytest.raises(kvf.InputError) as error:
        action(*arguments, **keywords)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "text, lines",
    [
        ("r = mul(x, 2)", ["r = mul(x, 2)"]),
        ("  r = mul( x ,2 )  # twice\n\n", ["r = mul(x, 2)"]),
        ("r = mul(x, -0.5)", ["r = mul(x, -0.5)"]),
        ("r = max(x, nan)", ["r = max(x, nan)"]),
        ("r = max(x, 1e-6)", ["r = max(x, 1e-06)"]),
        ("r = round(x, half_even)", ["r = round(x, half_even)"]),
        ("c = encode(x, e5m2)", ["c = encode(x, e5m2)"]),
        ("c = encode(x, e8m0fnu, saturate, up)", ["c = encode(x, e8m0fnu, saturate, up)"]),
        ("r = mul(add(x, 1), 2)", ["t0 = add(x, 1)", "r = mul(t0, 2)"]),
        ("r = select(x == 0, 1, x)", ["t0 = eq(x, 0)", "r = select(t0, 1, x)"]),
        (
            "r = select(add(x, 1) <= abs(x), 1, x)",
            ["t0 = add(x, 1)", "t1 = abs(x)", "t2 = le(t0, t1)", "r = select(t2, 1, x)"],
        ),
        ("a = neg(x)\na = mul(a, a)", ["a = neg(x)", "a = mul(a, a)"]),
        ("", []),
    ],
)
def test_text_becomes_operations(text, lines):
    assert _lines(text) == lines
    assert _lines("\n".join(lines)) == lines  # and operations are text again


@pytest.mark.parametrize(
    "text, value",
    [
        ("t1 = mul(x, 2)\nr = mul(t1, add(x, t1))", 2 * (1 + 2)),
        ("t0 = mul(x, 2)\nr = add(mul(x, 3), add(t0, mul(x, 5)))", 3 + 2 + 5),
        ("r = add(mul(x, 3), mul(t0, 5))", 3 + 10 * 5),
        ("r = select(lt(x, 5), t0, t1)", 10.0),
    ],
)
def test_names_of_inner_results_never_shadow_the_text_s_own(text, value):
    inputs = {"x": exact.number(1), "t0": exact.number(10), "t1": exact.number(20)}
    assert float(exact.evaluate(Program.parse(text), inputs)["r"]) == value


def test_programs_are_equal_if_their_operations_and_precision_are():
    one, other = Program.parse("r = mul( x, 2)  # note"), Program.parse("r = mul(x, 2)")
    assert one == other
    assert hash(one) == hash(other)
    assert one.text != other.text
    assert Program.parse("r = mul(x, 2)", "real") != other


@pytest.mark.parametrize(
    "text, words",
    [
        ("c", "'c' is not of the form 'name = word(operand, ...)'"),
        ("c = 3", "not of the form"),
        ("c = x", "not of the form"),
        ("c = mul(x, 2); d = neg(x)", "not of the form"),
        ("c = d = neg(x)", "not of the form"),
        ("a, b = neg(x)", "not of the form"),
        ("c: int = neg(x)", "not of the form"),
        ("c = mul(x,", "not of the form"),
        ("import os", "not of the form"),
        ("neg(x)", "not of the form"),
        ("c = x + 1", "not of the form"),
        ("nan = neg(x)", "'nan' is a number, not a name"),
        ("c = zyxw(x)", "unknown word in recipe line 'c = zyxw(x)': 'zyxw'; the closest of "),
        ("c = power(x, 2)", "'power'"),
        ("c = encod(x, e4m3fn)", "did you mean encode?"),
        ("c = np.abs(x)", "'np.abs'"),
        ("c = mul(x)", "mul takes 2 arguments"),
        ("c = mul(x, 1, 2)", "mul takes 2 arguments"),
        ("c = round(x)", "round takes 2 arguments"),
        ("c = encode(x)", "encode takes 2..4 arguments"),
        ("c = mul(x, b=2)", "mul takes its arguments in order, none of them by name"),
        (
            "c = round(x, half_up)",
            "unknown attribute of round in recipe line 'c = round(x, half_up)': 'half_up'; did you mean",
        ),
        ("c = encode(x, e4m4fn)", "did you mean e4m3fn"),
        ("c = encode(x, e4m3fn, inward)", "'inward'; known: "),
        ("c = mul(x, 'a')", "is no name, number, call or comparison"),
        ("c = mul(x, x + 1)", "'x + 1' is no name, number, call or comparison"),
        ("c = mul(x, a.b)", "'a.b' is no name"),
        ("c = mul(x, 1j)", "'1j' is no name"),
        ("c = select(x > 1, x, 1)", "'x > 1' is no name"),
        ("c = select(0 < x < 1, x, 1)", "'0 < x < 1' is no name"),
        ("c = mul(*x, 1)", "'*x' is no name"),
    ],
)
def test_text_that_is_no_recipe_is_refused_in_one_line(text, words):
    assert words in _message(Program.parse, text)


def test_unknown_precision_and_granularity_name_the_known_ones():
    assert "did you mean float32" in _message(Program.parse, "c = neg(x)", "float31")
    assert "known: bfloat16, float16, float32, float64, input, real" in _message(Program.parse, "c = neg(x)", "zzzz")
    assert "per_token_head" in _message(granularity, "per_token_and_head")


@pytest.mark.parametrize(
    "text, constant", [("1", True), ("-1e-6", True), ("nan", True), ("inf", True), ("x", False), ("", False)]
)
def test_what_a_constant_is(text, constant):
    assert is_constant(text) == constant


# --- recipes ---------------------------------------------------------------------------------------------------------


def _recipe(
    scale="s = div(amax_finite(x), 448)",
    code="c = encode(div(x, s), e4m3fn)",
    value="v = mul(c, s)",
    *,
    store="float32",
    element="e4m3fn",
    share="per_token_head",
    precision="float32",
    name="mine/test",
    may_be_given=False,
):
    level = Level("s", granularity(share), Program.parse(scale, precision), store, may_be_given)
    return Recipe(
        name, "fp8_per_token_head", element, (level,), Program.parse(code), Program.parse(value), "me", "exact"
    )


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"scale": "s = mul(x, 2)"}, "'x' is a group, mul takes a number there"),
        ({"scale": "x = neg(1)\ns = amax(x)"}, "'x' is a number, amax takes a group there"),
        ({"scale": "s = amax(y)"}, "a reduction reads x, into a name of its own"),
        ({"scale": "s = neg(1)\ns = amax(x)"}, "a reduction reads x, into a name of its own"),
        ({"scale": "a = amax(x)"}, "the program must give a number named 's'"),
        ({"scale": "s = any_nan(x)"}, "the program must give a number named 's'"),
        ({"scale": "s = add(any_nan(x), 1)"}, "is a flag, add takes a number there"),
        ({"code": "c = mul(x, s)"}, "the program must give a code named 'c'"),
        ({"code": "d = encode(x, e4m3fn)"}, "the program must give a code named 'c'"),
        ({"code": "c = encode(mul(x, z), e4m3fn)"}, "'z' has no value; known: "),
        ({"code": "c = encode(select(x, 1, 2), e4m3fn)"}, "'x' is a number, select takes a flag there"),
        ({"code": "c = encode(amax_finite(x), e4m3fn)"}, "recipe mine/test, code"),
        ({"code": "c = encode(div(x, s), e5m2)"}, "c = encode(t0, e5m2): the codes are e4m3fn"),
        ({"code": "c = encode(x, e4m3fn)\nd = neg(c)"}, "'c' is a code, neg takes a number there"),
        ({"value": "v = mul(c, z)"}, "'z' has no value; known: c, eps, s"),
        ({"value": "v = mul(c, x)"}, "'x' has no value; known: c, eps, s"),
        ({"value": "v = mul(c, t0)"}, "'t0' has no value; known: c, eps, s"),
        ({"value": "w = mul(c, s)"}, "the program must give a number named 'v'"),
        ({"store": "e4m4fn"}, "unknown store format in recipe mine/test, scale s: 'e4m4fn'; did you mean e4m3fn"),
        ({"store": ""}, "unknown store format"),
        ({"store": "e8m0fnu"}, "s = encode(s, e8m0fnu): e8m0fnu needs a rounding by name: nearest_even, up, down"),
        ({"store": "e4m3fn up"}, "e4m3fn knows the rounding nearest_even, nearest_away, nearest_toward_zero; got 'up'"),
        ({"store": "e8m0fnu sideways"}, "e8m0fnu knows the rounding nearest_even, up, down; got 'sideways'"),
        ({"store": "float32 up"}, "float32 rounds to nearest even, it takes no policy; got 'float32 up'"),
        (
            {"code": "c = encode(x, e4m3fn, saturate, up)"},
            "e4m3fn knows the rounding nearest_even, nearest_away, nearest_toward_zero; got 'up'",
        ),
        ({"code": "c = encode(x, e8m0fnu)"}, "e8m0fnu needs a rounding by name"),
        ({"precision": "real"}, "would round twice"),
    ],
)
def test_recipe_that_cannot_run_is_refused_when_it_is_made(arguments, words):
    assert words in _message(_recipe, **arguments)


def test_two_levels_of_scales_within_a_row_whose_blocks_do_not_nest_are_refused():
    level = Level("s", granularity("per_block_32"), Program.parse("s = amax_finite(x)"), "float32")
    block = Level("b", granularity("(1, 1, 24)"), Program.parse("b = amax_finite(x)"), "float32")
    code, value = Program.parse("c = encode(x, e4m3fn)"), Program.parse("v = mul(c, s)")
    words = _message(Recipe, "two", "nvfp4", "e4m3fn", (level, block), code, value, "me", "exact")
    assert "b of (1, 1, 24) does not divide s of per_block_32" in words


@pytest.mark.parametrize("names, shared, words", [
    (("x", "b"), ("per_tensor", "per_block"), "a scale cannot be named 'x', which is the input"),
    (("s", "v"), ("per_tensor", "per_block"), "a scale cannot be named 'v', which is the value"),
    (("s", "s"), ("per_tensor", "per_block"), "two scales are named 's'; each needs a name of its own"),
    (("s", "g"), ("per_block", "per_tensor"), "scale s lies within a row and g does not; outer scales come first"),
])  # fmt: skip
def test_levels_whose_names_or_order_mean_nothing_are_refused(names, shared, words):
    levels = tuple(
        Level(name, granularity(each), Program.parse(f"{name} = amax_finite(x)"), "float32")
        for name, each in zip(names, shared, strict=True)
    )
    code, value = Program.parse("c = encode(x, e4m3fn)"), Program.parse("v = mul(c, 1)")
    assert words in _message(Recipe, "two", "nvfp4", "e4m3fn", levels, code, value, "me", "exact")


@pytest.mark.parametrize("recipe", [kvf.recipe(name) for name in catalogue.names()], ids=lambda recipe: recipe.name)
def test_recipes_are_frozen_hashable_and_picklable(recipe):
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert hash(pickle.loads(pickle.dumps(recipe))) == hash(recipe)
    assert kvf.recipe(recipe.name) is recipe
    assert kvf.recipe(recipe) is recipe


def test_a_recipe_s_name_means_one_thing(monkeypatch):
    monkeypatch.setattr(catalogue, "_RECIPES", dict(catalogue._RECIPES))
    mine = catalogue.register(_recipe())
    assert kvf.recipe("mine/test") is mine
    assert catalogue.register(_recipe()) == mine
    assert "exists; give yours another name" in _message(catalogue.register, _recipe(code="c = encode(x, e4m3fn)"))


X = np.random.default_rng(3).standard_normal((3, 2, 32)).astype(np.float32) * np.float32([[[1.0]], [[20.0]], [[400.0]]])


RECIPROCAL = """
    q = mul(x, rcp(s))
    q = add(q, copysign(0.5, q))
    c = encode(clamp(round(q, toward_zero), -128, 127), int8)
"""


@pytest.mark.parametrize(
    "recipe, shape",
    [
        (_recipe(share="per_head"), (2,)),
        (_recipe(share="per_token"), (3,)),
        (_recipe(scale="s = div(amax_finite(x), 448)", store="e8m0fnu up"), (3, 2)),
        (_recipe(scale="s = div(amax_finite(x), 448)", store="e8m0fnu up", share="per_head"), (2,)),
        (
            _recipe(
                scale="s = max(mul(amax(x), 0.007874016), 1e-6)",
                code=RECIPROCAL,
                element="int8",
            ),
            (3, 2),
        ),
    ],
    ids=["per_head", "per_token", "e8m0fnu scales", "e8m0fnu scales per head", "reciprocal and truncation"],
)
def test_a_recipe_of_one_s_own_runs_as_its_twin_does_and_comes_back(recipe, shape):
    q = kvf.quantize(X, recipe)
    codes, scales, _ = exact.quantize(X, recipe)
    assert q.scales.shape == shape
    assert_same_codes(q.codes, codes)
    (assert_same_codes if scales.dtype == np.uint8 else assert_same_values)(q.scales, scales)
    decoded = kvf.decode(q.scales, "e8m0fnu") if scales.dtype == np.uint8 else q.scales
    share = recipe.levels[0].granularity
    grid = decoded.reshape(1 if share.shares_tokens else 3, 1 if share.shares_heads else 2, 1)
    assert_same_values(q.dequantize(), kvf.decode(q.codes, recipe.element) * grid)
