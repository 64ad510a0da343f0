"""What a report says of the first difference, on hand-made cases whose every number is computed by hand."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from kvformat.layouts import layout as make_layout
from tests.verify.cases import from_bits, judge, one_head, written


def after(mode, key, edits, **options):
    """The report on right pages of one head (K = V) with some bytes of page 0 replaced."""
    layout, key, value, pages = one_head(mode, key, **options)
    for byte, code in edits.items():
        assert pages[0, byte] != code
        pages[0, byte] = code
    given = {name: scale for name, scale in options.items() if name.endswith("_scale")}
    return judge(layout, key, value, pages, np.arange(len(key)), **given)


def said(report):
    """The lines of the explanation, by their first word(s)."""
    lines = str(report).split("  first difference: ")[1].splitlines()
    return {"place": lines[0]} | {line[4:15].strip(): line[16:] for line in lines[1:]}


def test_int8_a_tie_rounded_up_is_shown_as_a_tie():
    # amax 127: the scale is 1; 2.5 lies between 2 and 3, and 2 is even
    report = after("int8_per_token_head", [[127, 2.5, 0, 0]], {1: 3})
    assert said(report) == {
        "place": "K code of token 0, head 0, dim 1",
        "lies in": "slot 0 = block 0, position 0; page byte 1",
        "input": "2.5 (float32 0x40200000)",
        "scale s": "1 (float32 0x3F800000)",
        "quotient": "2.5, a tie between 2 and 3",
        "expected": "code 2 = 2, decodes to 2",
        "found": "code 3 = 3, decodes to 3",
    }
    assert report.mismatches == 1
    assert report.first["quotient"] == {
        "operation": "t0 = div(x, s)",
        "exact": "2.5",
        "computed": "2.5",
        "tie_between": ["2", "3"],
        "exact_is_tie": True,
        "codes_differ": False,
    }


def test_int8_a_negative_tie_and_a_negative_code_keep_their_signs():
    report = after("int8_per_token_head", [[127, -0.5, 0, 0]], {1: 0xFF})
    lines = said(report)
    assert lines["quotient"] == "-0.5, a tie between 0 and -1"
    assert lines["expected"] == "code 0 = 0, decodes to 0"
    assert lines["found"] == "code -1 = -1, decodes to -1"


def test_fp8_division_against_the_reciprocal_shows_bits_and_the_exact_quotient():
    """Case A7 of the bug zoo: division gives 0x45, multiplication by the rounded reciprocal 0x44."""
    amax, x, scale = 0x3EC63DDB, 0x3B310060, 0x3A628FD6
    report = after("fp8_per_token_head", [from_bits(amax, x, 0, 0)], {1: 0x44})
    # significands and exponents of the two float32, by their fields
    value, s = ((Fraction(0x800000 | bits & 0x7FFFFF) * Fraction(2) ** ((bits >> 23) - 150)) for bits in (x, scale))
    exact = value / s
    assert exact > Fraction(25, 8)  # just above the midpoint of 3 (0x44) and 3.25 (0x45)
    assert exact - Fraction(25, 8) < Fraction(1, 2**21)
    lines = said(report)
    assert lines["input"].endswith("(float32 0x3B310060)")
    assert lines["scale s"].endswith("(float32 0x3A628FD6)")
    digits, fraction = lines["quotient"].removesuffix(")").split(" (rounded; exactly ")
    assert Fraction(fraction) == exact
    assert float(digits) == float(exact)
    assert lines["expected"].startswith("code 0x45 = 3.25, decodes to 0.0028088")
    assert lines["found"].startswith("code 0x44 = 3, decodes to 0.0025927")


def test_nvfp4_a_wrong_nibble_shows_both_scales_and_the_bit():
    # g = 2, amax 12: the block scale is 12 / (6 * 2) = 1 (0x38), d = 2; 5 / 2 is a tie between 2 (0x4) and 3 (0x5)
    row = [12, 5] + [0] * 14
    report = after("nvfp4", [row], {0: 0x57}, k_scale=2, v_scale=2)
    assert said(report) == {
        "place": "K code of token 0, head 0, dim 1",
        "lies in": "slot 0 = block 0, position 0; page byte 0 bit 4",
        "input": "5 (float32 0x40A00000)",
        "scale g": "2 (float32 0x40000000)",
        "scale bs": "code 0x38 = 1",
        "quotient": "2.5, a tie between 2 and 3",
        "expected": "code 0x4 = 2, decodes to 4",
        "found": "code 0x5 = 3, decodes to 6",
    }


def test_nvfp4_a_code_is_explained_with_the_scale_of_its_own_block():
    # g = 1, block scales 1 and 12 / 6 = 2; in the second block 3 / 2 = 1.5 is code 0x3
    report = after("nvfp4", [[6] + [0] * 15 + [12, 3] + [0] * 14], {8: 0x27}, k_scale=1, v_scale=1)
    lines = said(report)
    assert lines["place"] == "K code of token 0, head 0, dim 17"
    assert lines["scale bs"] == "code 0x40 = 2"
    assert lines["quotient"] == "1.5"
    assert lines["expected"] == "code 0x3 = 1.5, decodes to 3"
    assert lines["found"] == "code 0x2 = 1, decodes to 2"


def test_nvfp4_a_quotient_that_float32_moves_over_a_border_says_so():
    # found by search: exactly x / (22 g) = 1.7500000017 (code 4), but d = 22 g rounds up and gives 1.7499999 (code 3)
    g, x = from_bits(0x3AD019FB, 0x3D7A5F42)
    exact = Fraction(float(x)) / (22 * Fraction(float(g)))
    d = np.float32(22) * g
    assert exact > Fraction(7, 4) > Fraction(float(x / d))
    row = [132 * g, x] + [0] * 14  # 132 / 6 = 22
    report = after("nvfp4", [row], {0: 0x47}, k_scale=g, v_scale=g)
    lines = said(report)
    assert lines["scale bs"] == "code 0x5B = 22"
    assert lines["quotient"].startswith("1.7500000016664496 (rounded; exactly ")
    assert lines["quotient"].endswith("; float32 makes it 1.7499999, across a border")
    assert lines["expected"].startswith("code 0x3 = 1.5")
    assert lines["found"].startswith("code 0x4 = 2")


def test_a_quotient_that_float32_rounds_to_a_tie_says_so():
    # both are one ulp above a tie: 2.5 and 1
    scale, x = from_bits(0x3F800001, 0x40200001)
    exact = Fraction(float(x)) / Fraction(float(scale))
    assert exact != Fraction(5, 2)
    assert x / scale == np.float32(2.5)
    amax = next(a for a in 127 * scale * np.float32([1, 1 - 2**-24, 1 + 2**-23]) if a / np.float32(127) == scale)
    lines = said(after("int8_per_token_head", [[amax, x, 0, 0]], {1: 3}))
    assert lines["quotient"].endswith("; float32 rounds it to 2.5, a tie between 2 and 3")
    assert lines["expected"].startswith("code 2 = 2")


def test_a_float32_scale_shows_amax_where_it_is_and_the_exact_quotient():
    # |-254| / 127 = 2; the found scale is 1: bytes 4..7 after four codes, little-endian
    report = after("int8_per_token_head", [[1, 127, 3, -254]], {6: 0x80, 7: 0x3F})
    assert said(report) == {
        "place": "K scale of token 0, head 0, dims 0..3",
        "lies in": "slot 0 = block 0, position 0; page byte 4",
        "amax": "-254 (float32 0xC37E0000) at dim 3",
        "exact scale": "2",
        "expected": "2 (float32 0x40000000)",
        "found": "1 (float32 0x3F800000)",
    }
    assert report.mismatches == 1


def test_an_e4m3fn_scale_shows_amax_its_dims_and_the_tie():
    # g = 1, the second block: 102 / 6 = 17, a tie between 16 (0x58) and 18 (0x59)
    row = [1.0] * 20 + [-102] + [2.0] * 11
    report = after("nvfp4", [row], {65: 0x59}, k_scale=1, v_scale=1)  # 4 slots x 16 code bytes, then two scales a slot
    assert said(report) == {
        "place": "K scale of token 0, head 0, dims 16..31",
        "lies in": "slot 0 = block 0, position 0; page byte 65",
        "amax": "-102 (float32 0xC2CC0000) at dim 20",
        "exact scale": "17, a tie between 16 and 18",
        "expected": "code 0x58 = 16",
        "found": "code 0x59 = 18",
    }


def test_a_scale_over_elements_that_are_not_finite_says_how_many():
    row = [np.inf, 4.0, -np.inf, -8.0]
    lines = said(after("fp8_per_token_head", [row], {7: 0x00}))
    assert lines["amax"] == "-8 (float32 0xC1000000) at dim 3"
    assert lines["not finite"] == "2 of the elements that share it"
    lines = said(after("int8_per_token_head", [[np.nan] * 4], {6: 0x80, 7: 0x3F}))
    assert lines["amax"] == "no finite element"
    assert lines["not finite"] == "4 of the elements that share it"
    assert lines["exact scale"] == "nan"
    assert (lines["expected"], lines["found"]) == ("nan (float32 0x7FC00000)", "1 (float32 0x3F800000)")


def test_a_scale_of_a_row_of_zeros_is_one_and_says_that_amax_is_zero():
    lines = said(after("fp8_per_token_head", [[0, -0.0, 0, 0]], {7: 0x00}))
    assert (lines["amax"], lines["exact scale"]) == ("0 (float32 0x00000000) at dim 0", "1")
    assert lines["expected"] == "1 (float32 0x3F800000)"


def test_mode_none_shows_the_bits_in_both_dtypes():
    # 1/3 is 0x3EAAAAAB; to bfloat16 the nearest is 0x3EAB, truncation gives 0x3EAA
    report = after("none", [from_bits(0x3F800000, 0x3EAAAAAB, 0, 0)], {2: 0xAA})
    assert said(report) == {
        "place": "K code of token 0, head 0, dim 1",
        "lies in": "slot 0 = block 0, position 0; page byte 2",
        "input": "0.33333334 (float32 0x3EAAAAAB)",
        "expected": "0.33398438 (bfloat16 0x3EAB)",
        "found": "0.33203125 (bfloat16 0x3EAA)",
    }


def test_fp8_per_tensor_shows_the_given_scale():
    # 1 / 0.5 = 2, e4m3fn 0x40; found 0x41 = 2.25
    report = after("fp8_per_tensor", [[1.0, 0, 0, 0]], {0: 0x41}, k_scale=0.5, v_scale=0.5)
    lines = said(report)
    assert lines["scale s"] == "0.5 (float32 0x3F000000)"
    assert lines["quotient"] == "2"
    assert lines["expected"] == "code 0x40 = 2, decodes to 1"
    assert lines["found"] == "code 0x41 = 2.25, decodes to 1.125"


@pytest.mark.parametrize(
    "x, quotient, expected", [(np.inf, "inf", "code 0x7E = 448"), (np.nan, "nan", "code 0x7F = nan")]
)
def test_inf_and_nan_are_explained_like_numbers(x, quotient, expected):
    lines = said(after("fp8_per_token_head", [[448, x, 0, 0]], {1: 0x7D}))
    assert lines["quotient"] == quotient
    assert lines["expected"].startswith(expected)
    assert lines["found"] == "code 0x7D = 416, decodes to 416"


def test_a_found_nan_code_is_explained():
    lines = said(after("fp8_per_token_head", [[448, 1, 0, 0]], {1: 0xFF}))
    assert lines["found"] == "code 0xFF = nan, decodes to nan"


@pytest.mark.parametrize("dtype, bits", [(np.float16, "float16 0x4100"), (np.float32, "float32 0x40200000")])
def test_the_input_is_shown_in_its_own_dtype(dtype, bits):
    layout = make_layout("vllm-0.33", mode="int8_per_token_head", block_size=1, num_kv_heads=1, head_size=4)
    x = np.array([[[127, 2.5, 0, 0]]], dtype)
    pages = written(layout, x, x, np.array([0]), 1)
    pages[0, 1] = 3
    assert said(judge(layout, x, x, pages, np.array([0])))["input"] == f"2.5 ({bits})"


def test_a_v_code_in_a_later_block_says_block_and_position():
    layout = make_layout("vllm-0.33", mode="fp8_per_tensor", block_size=2, num_kv_heads=3, head_size=4, order="HND")
    x = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
    slots = np.array([4, 1])
    pages = written(layout, x, x, slots, 3, k_scale=1, v_scale=1)
    # block 2; head 1, slot 0 is cell 2 of 8 bytes; V at 4, dim 2: x is 7 (0x4E), found 7.5 (0x4F)
    assert pages[2, 2 * 8 + 4 + 2] == 0x4E
    pages[2, 22] = 0x4F
    lines = said(judge(layout, x, x, pages, slots, k_scale=1, v_scale=1))
    assert lines["place"] == "V code of token 0, head 1, dim 2"
    assert lines["lies in"] == "slot 4 = block 2, position 0; page byte 22"


SIGNALLING = {"float32": 0x7F800001, "float16": 0x7C01, "bfloat16": 0x7F81}


@pytest.mark.parametrize("dtype", SIGNALLING)
@pytest.mark.parametrize("mode", ["none", "fp8_per_token_head", "int8_per_token_head", "fp8_per_tensor", "nvfp4"])
def test_a_signalling_nan_is_judged_and_explained_without_a_warning(mode, dtype):
    x = np.ones((1, 1, 16), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x.view(f"u{x.itemsize}")[0, 0, 5] = SIGNALLING[dtype]
    choice = {"v_scales": "linear"} if mode == "nvfp4" else {}
    choice |= {"dtype": dtype} if mode == "none" else {}
    layout = make_layout("vllm-0.33", mode=mode, block_size=1, num_kv_heads=1, head_size=16, **choice)
    pages = written(layout, x, x, np.array([0]), 1)
    assert judge(layout, x, x, pages, np.array([0])).ok
    part = "scale" if mode in ("int8_per_token_head", "nvfp4") else "code"
    where = layout.locate(side="k", slot=0, head=0, dim=5, part=part)
    pages[0, where.byte : where.byte + where.bits // 8] = 0
    report = judge(layout, x, x, pages, np.array([0]))
    assert (report.mismatches, report.first["part"]) == (1, part)
    assert "nan" in said(report)["expected"]
