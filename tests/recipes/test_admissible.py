"""The interval reader against brute force: every result an approximate instruction may have, in a scalar rewrite."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest

from kvformat.recipes.admissible import is_approximate, point, within
from kvformat.recipes.catalogue import recipe as find
from tests.recipes import adversarial

F = np.float32


def shifted(value, ulps):
    """A float32 some units in the last place further."""
    value = F(value)
    for _ in range(abs(ulps)):
        value = np.nextafter(value, F(np.inf if ulps > 0 else -np.inf))
    return value


def e4m3fn(value):
    return int(np.clip(np.asarray(value, F), -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def e2m1fn(value):
    return int(np.clip(np.asarray(value, F), -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8))


def _accepted_codes(recipe, x, outer, scales, candidates):
    """Which of the codes are admissible for the first element of a row."""
    definite = find(recipe).for_input("float32")
    codes = np.zeros((1, x.size), np.uint8)
    accepted = set()
    for code in candidates:
        codes[0, 0] = code
        _, good = within(x[None], definite, {name: point(F(s)) for name, s in outer.items()}, codes, scales)
        if good[0, 0]:
            accepted.add(code)
    return accepted


def _accepts_scale(recipe, x, outer, scale):
    definite = find(recipe).for_input("float32")
    known = {name: point(F(s)) for name, s in outer.items()}
    good, _ = within(x[None], definite, known, np.zeros((1, x.size), np.uint8), scale)
    return bool(good[0, 0])


@pytest.mark.slow
def test_a_quotient_within_2_ulp_gives_exactly_the_codes_of_the_five_quotients():
    # one approximate word: the set is known, so the reader must be neither wider nor narrower
    rng, scale = np.random.default_rng(5), 0.037
    middle = (np.arange(8, 16) + 0.5) / 8 * 2.0 ** rng.integers(-5, 8, 8)  # midpoints of e4m3fn
    ambiguous = 0
    for value in middle:
        for ulps in range(-8, 9):
            x = np.array([shifted(F(value) * F(scale), ulps)], F)
            q = x[0] / F(scale)
            expected = {e4m3fn(shifted(q, k)) for k in range(-2, 3)}
            found = _accepted_codes("vllm-0.33/triton/fp8_per_tensor", x, {"s": scale}, np.zeros((1, 0), F), range(127))
            assert found == expected
            ambiguous += len(expected) == 2
    assert ambiguous > len(middle)  # the bound matters here


@pytest.mark.parametrize("name", ["triton/int8_per_token_head", "triton/fp8_per_token_head"])
def test_a_scale_by_an_approximate_constant_is_one_of_five_products(name):
    # s = amax * div.approx(1, 127 or 448)
    top = 127 if "int8" in name else 448
    for amax in (1.0, 3.1415927, 126.99999, 0.0078125):
        x = np.array([amax, -amax / 3], F)
        products = [F(amax) * shifted(F(1) / F(top), k) for k in range(-2, 3)]
        for s in products:
            assert _accepts_scale(f"vllm-0.33/{name}", x, {}, np.array([[s]], F))
        for outside in (shifted(min(products), -1), shifted(max(products), 1)):
            assert not _accepts_scale(f"vllm-0.33/{name}", x, {}, np.array([[outside]], F))


def test_the_floor_of_a_scale_is_exact():
    x = np.array([1e-5, 0], F)  # below 1.27e-4
    name = "vllm-0.33/triton/int8_per_token_head"
    assert _accepts_scale(name, x, {}, np.array([[1e-6]], F))
    assert not _accepts_scale(name, x, {}, np.array([[shifted(1e-6, 1)]], F))
    assert not _accepts_scale(name, x, {}, np.array([[shifted(1e-6, -1)]], F))


def _nvfp4_block(x, g, amax, at_6, at_g, at_d):
    """One block scale and the code of x as csrc/nvfp4 computes them, each reciprocal so many ulp off."""
    gs = F(1) / F(g)
    bs = F(e4m3fn_value(e4m3fn(gs * F(F(amax) * shifted(F(1) / F(6), at_6)))))
    d = shifted(F(1) / F(bs * shifted(F(1) / gs, at_g)), at_d)
    return e4m3fn(bs), e2m1fn(F(x) * d)


def e4m3fn_value(code):
    return float(np.uint8(code).view(ml_dtypes.float8_e4m3fn).astype(F))


@pytest.mark.slow
def test_three_reciprocals_within_1_ulp_each_are_all_admissible():
    rng = np.random.default_rng(11)
    seen_scales = seen_codes = 0
    for _ in range(150):
        g = F(rng.uniform(0.01, 1))
        # an amax next to a tie of the block scale, an x next to a tie of its code
        bs = (8 + rng.integers(0, 8) + 0.5) / 8 * 2.0 ** rng.integers(-3, 6)
        amax = shifted(F(bs) * F(6) * g, rng.integers(-3, 4))
        tie = F(rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]))
        rounded = e4m3fn_value(e4m3fn(amax / (6 * g)))
        x = np.zeros(16, F)
        x[0], x[1] = shifted(tie * F(F(rounded) * g), rng.integers(-4, 5)), amax
        results = {_nvfp4_block(x[0], g, amax, *off) for off in product((-1, 0, 1), repeat=3)}
        scales = {scale for scale, _ in results}
        for scale in scales:
            assert _accepts_scale("vllm-0.33/csrc/nvfp4", x, {"g": g}, np.array([[scale]], np.uint8))
            codes = {code for s, code in results if s == scale}
            found = _accepted_codes("vllm-0.33/csrc/nvfp4", x, {"g": g}, np.array([[scale]], np.uint8), range(16))
            assert codes <= found
            assert len(found) <= 2
            seen_codes += len(codes) == 2
        for outside in (min(scales) - 1, max(scales) + 2):
            assert not _accepts_scale("vllm-0.33/csrc/nvfp4", x, {"g": g}, np.array([[outside]], np.uint8))
        seen_scales += len(scales) == 2
    assert seen_scales > 10
    assert seen_codes > 10


def test_a_logarithm_within_2_ulp_decides_either_way_next_to_a_power_of_two_only():
    name = "vllm-0.33/csrc/indexer_k_ue8m0"  # s = exp2(ceil(log2(max(amax, 1e-4) / 448)))
    for exponent in (-5, 0, 6):
        for amax, allowed in (
            (F(448) * F(2.0**exponent), {exponent, exponent + 1}),
            (F(448) * F(1.01 * 2.0**exponent), {exponent + 1}),
            (F(448) * F(0.99 * 2.0**exponent), {exponent}),
        ):
            x = np.zeros(128, F)
            x[0] = amax
            found = {k for k in range(exponent - 2, exponent + 4) if _accepts_scale(name, x, {}, F([[2.0**k]]))}
            if exponent == 0 and amax == 448:
                allowed = {0, 1}  # log2 is 0 there, whose neighbours are subnormal: above 0 ceil is 1
            assert found == allowed


def test_both_scales_of_a_tie_between_trials_are_admissible_where_bounds_overlap():
    # six elements that the scale for 6 and the scale for 4 represent equally well would tie in exact arithmetic
    recipe = find("vllm-0.33/csrc/nvfp4_4over6").for_input("float32")
    x = np.zeros((1, 16), F)
    x[0, :2] = 12, 8  # 6 * 2 and 4 * 2; or 4 * 3 and 3 * 3 - 1
    known, codes = {"g": point(F(1))}, np.array([[7, 6, *[0] * 14]], np.uint8)
    good, right = within(x, recipe, known, codes, np.array([[0x40]], np.uint8))  # 2.0: exact
    assert good.all()
    assert right.all()
    good, _ = within(x, recipe, known, codes, np.array([[0x44]], np.uint8))  # 3.0: an error of 1
    assert not good.any()


def test_zeros_match_where_every_trial_has_no_error():
    recipe = find("vllm-0.33/csrc/nvfp4_4over6").for_input("float32")
    x = np.zeros((1, 16), F)
    good, right = within(x, recipe, {"g": point(F(1))}, np.zeros((1, 16), np.uint8), np.zeros((1, 1), np.uint8))
    assert good.all()
    assert right.all()


def test_approximate_recipes_are_those_with_such_a_word_in_scale_code_or_error():
    assert is_approximate(find("vllm-0.33/csrc/nvfp4_4over6"))
    assert is_approximate(find("vllm-0.33/triton/int4_per_token_head"))
    assert not is_approximate(find("vllm-0.33/csrc/fp8_per_tensor"))
    assert not is_approximate(find("golden/nvfp4"))
    assert adversarial.finite().shape == (3, 2, 128)
