"""kvformat explain: expected codes worked out by hand from the formats' definitions."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from kvformat.cli import main
from kvformat.cli.numerals import hex_float, parse_number
from kvformat.errors import InputError


def explain(capsys, *arguments):
    status = main(["explain", *arguments, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["status"] == status
    return document


@pytest.mark.parametrize(
    "value, fmt, code",
    [
        ("0.3", "e4m3fn", "0x2A"),  # 1.25 * 2^-2
        ("0x1.8p3", "e4m3fn", "0x54"),  # 1.5 * 2^3
        ("3/8", "e5m2", "0x36"),  # 1.5 * 2^-2
        ("-0.0", "e4m3fn", "0x80"),
        ("-0", "e4m3fnuz", "0x00"),
        ("-1e-9", "e5m2", "0x80"),  # rounds to -0
        ("1e9999", "e5m2", "0x7B"),
        ("-inf", "e4m3fn", "0xFE"),
        ("+inf", "int8", "0x7F"),
        ("nan", "e4m3fn", "0x7F"),
        ("-nan", "e2m1fn", "0x7"),
        ("NaN", "int4", "0x0"),
        ("-300", "int8", "0x80"),
        (".5", "int8", "0x00"),
        ("1.5", "int8", "0x02"),
        ("-1.5", "int4", "0xE"),
        ("448", "e4m3fnuz", "0x7F"),
    ],
)
def test_a_number_becomes_the_code_that_the_definition_gives(capsys, value, fmt, code):
    assert explain(capsys, value, "--format", fmt)["code"] == code


@pytest.mark.parametrize(
    "value, fmt, code",
    [("2.5", "e2m1fn", "0x4"), ("3.5", "e2m1fn", "0x6"), ("-5", "e2m1fn", "0xE"), ("1.0625", "e4m3fn", "0x38"),
     ("1.1875", "e4m3fn", "0x3A"), ("0.0009765625", "e4m3fn", "0x00"), ("-2.5", "int8", "0xFE")],
)  # fmt: skip
def test_a_tie_goes_to_the_even_code_and_says_so(capsys, value, fmt, code):
    found = explain(capsys, value, "--format", fmt)
    assert (found["tie"], found["code"]) == (True, code)
    assert any(f"it goes to {code}, whose code is even" in note for note in found["notes"])


def test_a_hair_above_a_tie_is_no_tie_though_its_float32_is_one(capsys):
    value = "1.0625000000009094947017729282379150390625"  # 1.0625 + 2^-40
    found = explain(capsys, value, "--format", "e4m3fn")
    assert (found["tie"], found["code"]) == (False, "0x39")
    assert any("the nearest one is 1.0625 (0x1.1p+0), which becomes 0x38" in note for note in found["notes"])


def test_the_ladder_holds_both_neighbours_and_the_midpoint_in_order(capsys):
    ladder = explain(capsys, "0.3", "--format", "e4m3fn")["ladder"]
    assert ladder == [
        {"what": "below", "number": "0.28125", "code": "0x29"},
        {"what": "midpoint", "number": "0.296875"},
        {"what": "given", "number": "0.3"},
        {"what": "above", "number": "0.3125", "code": "0x2A"},
    ]


def test_a_code_lies_between_the_two_midpoints_that_bound_what_becomes_it(capsys):
    found = explain(capsys, "0b0_1111_110", "--format", "e4m3fn", "--code")
    assert (found["value"], found["hex"], found["bits"]) == ("448", "0x1.cp+8", "0_1111_110")
    assert [(rung["what"], rung["number"]) for rung in found["ladder"]] == [
        ("below", "416"), ("midpoint", "432"), ("given", "448"),
    ]  # fmt: skip


def test_around_zero_the_neighbours_are_the_smallest_values_of_each_sign(capsys):
    ladder = explain(capsys, "-0.0", "--format", "e2m1fn")["ladder"]
    assert [(rung["number"], rung.get("code")) for rung in ladder] == [
        ("-0.5", "0x9"), ("-0.25", None), ("-0", "0x8"), ("0.25", None), ("0.5", "0x1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fmt, edge, beyond, says",
    [("e4m3fn", ("464", "0x7E"), ("464.0001", "0x7F"), "ieee gives 0x7F (nan) above 464"),
     ("e5m2", ("61439.9", "0x7B"), ("61440", "0x7C"), "ieee gives 0x7C (inf) from 61440"),
     ("e4m3fnuz", ("247.9", "0x7F"), ("-248", "0x80"), "ieee gives 0x80 (nan) from 248"),
     ("e5m2fnuz", ("61439.9", "0x7F"), ("61440", "0x80"), "ieee gives 0x80 (nan) from 61440"),
     ("e2m1fn", ("6.9", "0x7"), ("1e30", "0x7"), "whatever the policy")],
)  # fmt: skip
def test_past_the_largest_value_the_overflow_policies_are_told_apart(capsys, fmt, edge, beyond, says):
    for value, code in (edge, beyond):
        found = explain(capsys, value, "--format", fmt, "--overflow", "ieee")
        assert found["code"] == code, value
        assert any(says in note for note in found["notes"])


@pytest.mark.parametrize("rounding, code", [("up", "0x81"), ("down", "0x80"), ("nearest_even", "0x80")])
def test_e8m0fnu_rounds_as_asked_and_ignores_the_sign(capsys, rounding, code):
    for value in ("3", "-3"):
        found = explain(capsys, value, "--format", "e8m0fnu", "--rounding", rounding)
        assert found["code"] == code
        assert found["tie"] == (rounding == "nearest_even")


def test_the_text_shows_bits_value_and_neighbours(capsys):
    assert main(["explain", "0.3", "--format", "e4m3fn"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("0.3 in e4m3fn: 0x2A = 0_0101_010 = 0.3125 = 0x1.4p-2\n")
    for word in ("0x29", "0.28125", "0.296875", "not a float32"):
        assert word in text


def test_a_hex_integer_is_a_number_and_the_text_says_how_to_mean_the_code(capsys):
    assert main(["explain", "0x7e", "--format", "e4m3fn"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("0x7e in e4m3fn: 0x70 = 0_1110_000 = 128")  # 126 lies between 120 and 128
    assert "for the code 0x7e add --code" in text


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("abc", "--format", "e4m3fn"), "'abc' is not a number"),
        (("0b11", "--format", "e4m3fn"), "for a code add --code"),
        (("1/0", "--format", "e4m3fn"), "is not a number"),
        (("1e99999", "--format", "e4m3fn"), "is not a number"),
        (("9" * 1000, "--format", "e4m3fn"), "is not a number"),
        (("\N{ARABIC-INDIC DIGIT THREE}", "--format", "e4m3fn"), "is not a number"),
        (("1_0", "--format", "e4m3fn"), "is not a number"),
        (("0x", "--format", "e4m3fn"), "is not a number"),
        (("1", "--format", "e4m3fm"), "unknown element format 'e4m3fm'; did you mean"),
        (("1", "--format", "e8m0fnu"), "nearest_even, up, down"),
        (("1", "--format", "e5m2", "--rounding", "up"), "e5m2 has no rounding 'up'"),
        (("1", "--format", "e5m2", "--overflow", "wrap"), "unknown overflow 'wrap'"),
        (("0x100", "--format", "e5m2", "--code"), "its codes are 0..255"),
        (("0x10", "--format", "e2m1fn", "--code"), "its codes are 0..15"),
        (("-1", "--format", "int8", "--code"), "its codes are 0..255"),
        (("0.5", "--format", "int8", "--code"), "'0.5' is not a code"),
    ],
)
def test_what_cannot_be_explained_is_refused_in_one_line(capsys, arguments, says):
    assert main(["explain", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err


@pytest.mark.parametrize(
    "text, number",
    [("0.1", Fraction(1, 10)), ("-1.5e-3", Fraction(-3, 2000)), ("0x.8p1", Fraction(1)), ("0X1P-9", Fraction(1, 512)),
     ("0x10", Fraction(16)), ("-7/21", Fraction(-1, 3)), ("1.", Fraction(1)), (" 2 ", Fraction(2))],
)  # fmt: skip
def test_numbers_are_read_exactly(text, number):
    assert parse_number(text).value == number


@pytest.mark.parametrize("text", ["", "-", "--1", "+-1", ".", "e5", "0x.p1", "1e", "1/2/3", "in", "0x1p", "1 2"])
def test_almost_numbers_are_refused(text):
    with pytest.raises(InputError, match="not a number"):
        parse_number(text)


@pytest.mark.parametrize(
    "value, text",
    [(1.0, "0x1p+0"), (0.3125, "0x1.4p-2"), (-0.0, "-0x0p+0"), (2.0**-127, "0x1p-127"), (float("-inf"), "-inf"),
     (float("nan"), "nan"), (448.0, "0x1.cp+8"), (16.0, "0x1p+4"), (17.0, "0x1.1p+4")],
)  # fmt: skip
def test_hex_floats_are_those_of_c99(value, text):
    assert hex_float(value) == text
