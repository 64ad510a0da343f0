"""The explorer in a real browser says what the command line says: numbers typed, bytes clicked, places asked for."""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from kvformat.cli import main
from kvformat.cli.numerals import parse_number
from kvformat.elements import exact
from kvformat.elements.formats import ELEMENTS
from kvformat.layouts import LAYOUTS, layout
from kvformat.vectors.vectors import VectorSet

pytestmark = pytest.mark.slow

FILE = Path(__file__).parents[2] / "spec" / "explorer.html"
ACROSS, CELL = 64, 10
#: cases compared with the command line, by what was asked; the last test counts them
CASES = {"numbers": 0, "codes": 0, "bytes": 0, "places": 0}

_RNG = np.random.default_rng(12)


def _numbers():
    """Numbers as people write them: ties, one bit beside ties, the ends of each format, specials, all notations."""
    chosen = ["0.3", "-0.3", "0", "-0.0", "inf", "-Infinity", "nan", "1e-400", "-1e400", "3/8", "-7/3", "0x1.8p3", ".5"]
    chosen += [
        "464",
        "464.00001",
        "61440",
        "61439.999999999999999999",
        "248",
        "6.000001",
        "127.5",
        "-128.5",
        "7.5",
        "2.5",
    ]
    chosen += [
        "1.0625000000009094947017729282379150390625",
        "1.0625",
        "0x1p-127",
        "0x1p-128",
        "0x1.8p-127",
        "1e38",
        "0x1p-17",
    ]
    ties = [
        (a + b) / 2
        for name in ("e4m3fn", "e5m2fnuz", "e2m1fn")
        for a, b in zip(*[exact.magnitudes(ELEMENTS[name])[i:] for i in (0, 1)], strict=False)
    ]
    for place in _RNG.choice(len(ties), 6, replace=False):
        chosen.append(str(ties[place].numerator) + "/" + str(ties[place].denominator))
        beside = ties[place] * (1 + Fraction(1, 10**30))
        chosen.append(f"-{beside.numerator}/{beside.denominator}")
    chosen += [repr(float(each)) for each in _RNG.standard_normal(6) * np.exp2(_RNG.integers(-20, 20, 6))]
    return chosen


NUMBERS = _numbers()


@pytest.fixture
def explorer(watched):
    """The page, opened from the disk. At the end it has complained of nothing and asked for nothing but itself."""
    watched.page.goto(FILE.as_uri())
    yield watched.page
    assert watched.complaints == []
    assert watched.requests == [FILE.as_uri()]


def said(capsys, *arguments):
    """The one document of a command."""
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def rows(page):
    """The table of answers by format: its cells, the ladder and whether it is a tie."""
    script = """[...document.querySelectorAll("#answers tbody tr")].map((row) => [row.dataset.format,
        [...row.cells].map((cell) => cell.textContent), row.dataset.ladder, row.dataset.tie])"""
    return {name: (cells, ladder, tie) for name, cells, ladder, tie in page.evaluate(script)}


def steps(ladder, fmt):
    """A ladder, of the command line or of the page, as comparable rungs; the number itself counts if it has a code."""
    found = []
    for rung in ladder:
        code = rung.get("code")
        if rung["what"] != "given" or code is not None:
            value = int(code, 16) if isinstance(code, str) else code
            found.append((rung["what"], rung["number"], value))
    assert all(code is None or 0 <= code < fmt.codes for _, _, code in found)
    return found


@pytest.mark.parametrize("overflow", ["saturate", "ieee"])
def test_a_typed_number_has_the_code_neighbours_midpoints_and_ties_of_the_command_line(explorer, capsys, overflow):
    explorer.select_option("#overflow", overflow)
    for index, text in enumerate(NUMBERS if overflow == "saturate" else NUMBERS[::2]):
        rounding = ELEMENTS["e8m0fnu"].roundings[index % 3]
        explorer.select_option("#rounding", rounding)
        explorer.fill("#value", text)
        found = rows(explorer)
        assert list(found) == list(ELEMENTS)
        for name, (cells, ladder, tie) in found.items():
            fmt = ELEMENTS[name]
            policy = ("--overflow", overflow, "--rounding", rounding if fmt.kind == "exponent" else fmt.roundings[0])
            told = said(capsys, "explain", text, "--format", name, *policy)
            assert cells[1:4] == [told["code"], told["bits"], told["value"]], (text, name, policy)
            assert tie == str(told["tie"]).lower(), (text, name)
            expected = told["ladder"] if parse_number(text).finite else []
            assert steps(json.loads(ladder), fmt) == steps(expected, fmt), (text, name)
            CASES["numbers"] += 1


def test_a_typed_number_is_rounded_to_float32_once_for_the_authorities(explorer):
    for text in NUMBERS:
        number = exact.round_binary(parse_number(text), exact.BINARIES["float32"])
        bits = 0x7FC00000 if number.nan else int(np.float32(float(number)).view(np.uint32))
        explorer.fill("#value", text)
        assert f"0x{bits:08X}" in explorer.inner_text("#number-note"), text


def test_the_authorities_answer_as_in_the_vectors(explorer):
    vectors = VectorSet.load()
    for group in vectors.document(vectors.find("elements/authorities"))["testGroups"]:
        for test in group["tests"][:: max(1, len(group["tests"]) // 12)]:
            value = float(np.uint32(int(test["x"], 16)).view(np.float32))
            if np.isnan(value):
                continue  # the page has one NaN, and it is positive
            explorer.fill("#value", value.hex() if np.isfinite(value) else str(value))
            answered = rows(explorer)[group["format"]][0][7]
            found = {
                name: code.strip().removeprefix("0x")
                for part in answered.split("; ")
                for code, names in [part.split(": ")]
                for name in names.split(", ")
            }
            assert found == test["expected"], test


@pytest.mark.parametrize("text", ["0x7e", "0b0_1111_110", "0", "0x80", "255", "0xFF", "0xF", "8", "0x7c", "0x01"])
def test_a_typed_code_has_the_value_and_neighbours_of_the_command_line(explorer, capsys, text):
    explorer.check("#is-code")
    explorer.fill("#value", text)
    for name, (cells, ladder, _) in rows(explorer).items():
        fmt = ELEMENTS[name]
        if int(text.replace("_", ""), 0) >= fmt.codes:
            assert cells[1] == "has no such code"
            continue
        told = said(capsys, "explain", text, "--format", name, "--code")
        assert cells[1:4] == [told["code"], told["bits"], told["value"]]
        if exact.decode(int(told["code"], 16), fmt).finite:
            assert steps(json.loads(ladder), fmt) == steps(told["ladder"], fmt)
        CASES["codes"] += 1


@pytest.mark.parametrize(
    ("text", "is_code"), [("", False), ("1.2.3", False), ("0x", False), ("300", True), ("-1", True)]
)
def test_what_is_no_number_or_code_is_said_and_shows_no_answer(explorer, text, is_code):
    explorer.set_checked("#is-code", is_code)
    explorer.fill("#value", text)
    assert "is not a" in explorer.inner_text("#number-error")
    assert rows(explorer) == {}


#: layouts whose other modes keep the bits of a code apart, or several parameters for a group: the explorer shows none
SHOWN_IN_PART = {
    "llama-cpp": ("none", "q8_0"),
    "mlx-lm": (),
    "openvino-by-token": (),
    "executorch": (),
}


def pages():
    """One small page of each layout and mode, orders in turn."""
    for entry in LAYOUTS.values():
        for index, (mode, form) in enumerate(entry.modes):
            if entry.name not in SHOWN_IN_PART or mode in SHOWN_IN_PART[entry.name]:
                yield pytest.param(entry.name, mode, form.orders[index % len(form.orders)], id=f"{entry.name}-{mode}")


@pytest.mark.parametrize(("name", "mode", "order"), list(pages()))
def test_a_clicked_byte_and_a_place_are_what_the_command_line_says(explorer, capsys, name, mode, order):
    explorer.select_option("#layout", name)
    explorer.select_option("#mode", mode)
    wanted = [text for text in explorer.locator("#order option").all_inner_texts() if text.startswith(order)]
    explorer.select_option("#order", wanted[-1])
    shown = explorer.evaluate("page")
    assert shown["spec"]["order"] == order
    made = layout(**shown["spec"])
    assert shown["bytes"] == made.page_bytes
    options = [
        word
        for key, value in shown["spec"].items()
        if key not in ("name", "mode")
        for word in (f"--{key}".replace("_", "-"), str(value))
    ]
    command = ("layout", name, "--mode", mode, *options)
    for byte in _RNG.integers(0, made.page_bytes, 3).tolist():
        row, column = divmod(byte, ACROSS)
        explorer.locator("#map").click(position={"x": column * CELL + 4, "y": row * CELL + 4})
        assert explorer.inner_text("#page-answer") == said(capsys, *command, "--byte", str(byte))["text"]
        assert explorer.input_value("#byte") == str(byte)
        CASES["bytes"] += 1
    for _ in range(3):
        region = made.regions[int(_RNG.integers(len(made.regions)))]
        slot, head = (int(_RNG.integers(count)) for count in (region.slots, region.heads))
        dim = int(_RNG.integers(region.all_dims.start, region.all_dims.stop))
        place = {"side": region.side, "part": region.part}
        for key, value in place.items():
            explorer.select_option(f"#{key}", value)
        for key, number in (("slot", slot), ("head", head), ("dim", dim)):
            explorer.fill(f"#{key}", str(number))
        explorer.click("#place-form button")
        question = f"{region.side},{slot},{head},{dim},{region.part}"
        assert explorer.inner_text("#page-answer") == said(capsys, *command, "--locate", question)["text"]
        CASES["places"] += 1


def test_a_byte_or_place_outside_the_page_is_said(explorer):
    explorer.fill("#byte", "999999999")
    assert "byte must be an integer in 0.." in explorer.inner_text("#page-answer")
    explorer.fill("#slot", "4000")
    explorer.click("#place-form button")
    assert "slot must be an integer in 0.." in explorer.inner_text("#page-answer")


def test_keys_move_from_byte_to_byte(explorer):
    explorer.fill("#byte", "5")
    explorer.focus("#map")
    explorer.keyboard.press("ArrowRight")
    assert explorer.input_value("#byte") == "6"
    explorer.keyboard.press("ArrowDown")
    assert explorer.input_value("#byte") == str(6 + ACROSS)


def test_at_least_500_cases_were_compared_with_the_command_line():
    if not all(CASES.values()) and os.environ.get("KVFORMAT_SITE") != "1":
        pytest.skip("counts only where all tests of this file ran in one process")
    assert sum(CASES.values()) >= 500
