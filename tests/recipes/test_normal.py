"""The normal form: equal for the same arithmetic written in another way, different for other arithmetic."""

import pytest

from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.entry import parse_recipe
from kvformat.recipes.normal import normal

BASE = {
    "name": "mine",
    "mode": "int8_per_token_head",
    "element": "int8",
    "source": "a test",
    "scales": [{"name": "s", "granularity": "per_token_head", "program": "s = div(amax_finite(x), 127)"}],
    "code": "q = round(mul(x, div(1, s)), half_even)\nc = encode(clamp(q, -127, 127), int8)",
    "value": "v = mul(c, s)",
}


def with_code(code, **more):
    return parse_recipe({**BASE, "code": code, **more})


@pytest.mark.parametrize(
    "code",
    [
        "r = rcp(s)\nq = round(mul(r, x), half_even)\nc = encode(clamp(q, -127, 127), int8)",
        "a = div(1.0, s)\nu = neg(x)\nb = mul(x, a)\nb = round(b, half_even)\nc = encode(clamp(b, -127, 127.0), int8)",
    ],
)
def test_names_order_unused_results_and_spelling_do_not_matter(code):
    assert normal(with_code(code)) == normal(parse_recipe(BASE))


@pytest.mark.parametrize(
    "code",
    [
        "q = round(div(x, s), half_even)\nc = encode(clamp(q, -127, 127), int8)",
        "q = round(mul(x, div(1, s)), half_away)\nc = encode(clamp(q, -127, 127), int8)",
        "q = round(mul(x, div(1, s)), half_even)\nc = encode(clamp(q, -128, 127), int8)",
    ],
)
def test_other_arithmetic_is_another_form(code):
    assert normal(with_code(code)) != normal(parse_recipe(BASE))


def test_a_code_made_from_the_scale_before_it_is_stored_is_another_form():
    scales = [{"name": "s", "granularity": "per_token_head", "program": "raw = div(amax_finite(x), 127)\ns = abs(raw)"}]
    stored = with_code("c = encode(div(x, s), int8)", scales=scales)
    unstored = with_code("c = encode(div(x, raw), int8)", scales=scales)
    assert normal(stored) != normal(unstored)


def test_granularity_store_and_precision_count():
    forms = [
        normal(recipe(name)) for name in ("golden/fp8_per_tensor", "golden/fp8_per_token_head", "exact/fp8_per_tensor")
    ]
    assert forms[0] != forms[1]
    assert forms[0] != forms[2]


def test_vllms_dividing_writer_computes_what_golden_does():
    assert normal(recipe("vllm-0.33/csrc/fp8_per_tensor")) == normal(recipe("golden/fp8_per_tensor"))


@pytest.mark.parametrize("name", names())
def test_every_recipe_has_a_normal_form_that_ends_in_its_code_and_value(name):
    parts = normal(recipe(name))
    if recipe(name).element is not None:
        assert "encode(" in parts["code"][-1]
        assert parts["value"]
