"""A proof looks at its whole domain, finds what differs, and refuses what it cannot enumerate."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.cli import main
from kvformat.proofs import prove
from kvformat.proofs.domains import DTYPES, domain, rows_of
from kvformat.proofs.homogeneous import why_not
from kvformat.proofs.monotone import why_not as not_monotone
from kvformat.proofs.prove import run
from kvformat.recipes.program import Program

INT8, FP8, NVFP4 = (kvf.recipe(f"golden/{mode}") for mode in ("int8_per_token_head", "fp8_per_token_head", "nvfp4"))


def changed(recipe, old, new):
    """The recipe with its code program changed."""
    assert old in recipe.code.text
    return replace(recipe, name="changed", code=Program.parse(recipe.code.text.replace(old, new)))


def part(whole, every):
    """Every so-manyth task of a domain, run."""
    return [run(task, whole) for index, task in enumerate(whole.tasks()) if index % every == 0]


def test_the_rows_of_bfloat16_are_all_pairs_once():
    """Of each largest magnitude 0 .. 0x7F7F, all patterns up to it, both signs: 32,640 x 32,641 codes."""
    whole = domain(INT8, INT8)
    tasks = list(whole.tasks())
    assert [task.start for task in tasks[1:]] == [task.stop for task in tasks[:-1]]
    assert (tasks[0].start, tasks[-1].stop) == (0, 0x7F80)
    assert sum((task.stop - task.start) * (task.start + 1 + task.stop) for task in tasks) == 32640 * 32641
    for task in tasks[:: len(tasks) // 5]:
        (rows,) = rows_of(task, whole)
        patterns = rows.x[:, 0].view(np.uint16)
        for row, amax in enumerate(range(task.start, task.stop)):
            seen = patterns[row][rows.counted[row]]
            assert len(seen) == len(np.unique(seen)) == 2 * (amax + 1)
            assert (seen & 0x7FFF).max() == amax
            assert not patterns[row][~rows.counted[row]].any()


def test_a_recipe_is_equal_to_itself_and_another_form_of_it():
    assert all(not found.pairs for found in part(domain(INT8, INT8), 100))
    other = changed(FP8, "div(x, s)", "neg(div(neg(x), s))")
    assert all(found.codes and not found.pairs for found in part(domain(FP8, other), 100))


def test_differences_are_those_that_fractions_find():
    """golden int8 against exact int8 in one row: the codes of each by arithmetic in fractions, from the definition."""
    whole = domain(INT8, kvf.recipe("exact/int8_per_token_head"))
    amax = np.array([0x41F6], np.uint16).view(ml_dtypes.bfloat16).astype(np.float64)[0]
    task = next(task for task in whole.tasks() if task.start <= 0x41F6 < task.stop)
    found = {(pair.x, pair.left, pair.right) for pair in run(task, whole).pairs if pair.amax == amax}
    scale = np.float32(amax) / np.float32(127)
    expected = set()
    for pattern in range(0x41F6 + 1):
        x = float(np.array([pattern], np.uint16).view(ml_dtypes.bfloat16)[0])
        golden = int(np.rint(np.float32(x) / scale))
        ratio = Fraction(x) / Fraction(float(scale))
        right = min(127, round(ratio))  # to the even one
        if golden != right:
            expected |= {(x, golden, right), (-x, -golden & 0xFF, -right & 0xFF)}
    assert found == expected
    assert expected  # this row has some


@pytest.mark.slow
def test_ties_that_go_another_way_are_found():
    """half_away for half_even: in the row of 127, whose scale is 1, exactly the ties above even numbers differ."""
    other = changed(INT8, "half_even", "half_away")
    whole = domain(INT8, other)
    task = next(task for task in whole.tasks() if task.start <= 0x42FE < task.stop)  # 127.0
    found = [pair for pair in run(task, whole).pairs if pair.amax == 127]
    # s = 1: x = k + 1/2 with even k, up to 127; bfloat16 has 8 bits, so halves up to 127.5
    assert {abs(pair.x) for pair in found} == {k + 0.5 for k in range(0, 127, 2)}


def test_the_blocks_of_nvfp4_are_all_codes_of_the_scale_and_all_x():
    whole = domain(NVFP4, NVFP4, given=(1.0,))
    amaxes, blocks = whole.tasks()
    found = run(amaxes, whole)
    assert (found.scales, found.codes) == (0x7F80, 0)
    stored = kvf.quantize(next(iter(rows_of(amaxes, whole))).x, NVFP4, scale=1.0).scales.reshape(-1)
    top = {code: int(np.flatnonzero(stored == code).max()) for code in np.unique(stored)}
    assert len(top) == 127
    found = run(blocks, whole)
    assert found.codes == sum(2 * (amax + 1) for amax in top.values())
    assert not found.pairs
    for rows in rows_of(blocks, whole):
        made = kvf.quantize(rows.x, NVFP4, scale=1.0).scales
        assert len(np.unique(made)) == 1  # every block has the code that it stands for


@pytest.mark.slow
def test_a_planted_difference_in_one_code_of_one_block_is_found():
    bound = "q = div(x, d)\n    q = select(eq(x, 0.75), 0, q)"
    other = changed(NVFP4, "q = div(x, d)", bound)
    whole = domain(NVFP4, other, given=(1.0,))
    found = run(list(whole.tasks())[1], whole)
    assert found.different_codes > 0
    assert {pair.x for pair in found.pairs} == {0.75}


def test_given_scales_are_all_significands_and_every_ratio_that_reaches_a_code():
    golden = kvf.recipe("golden/fp8_per_tensor")
    whole = replace(domain(golden, kvf.recipe("exact/fp8_per_tensor")), kind="given")  # as what is not monotone is
    tasks = list(whole.tasks())
    assert (tasks[0].start, tasks[-1].stop) == (0, 1 << 23)
    (rows,) = rows_of(tasks[7], whole)
    x, scales = rows.x[:, 0, 1:].astype(np.float64), rows.x[:, 0, 0].astype(np.float64) * 2.0**-40
    assert [float(s) for s in scales[:2]] == [1 + tasks[7].start * 2.0**-23, 1 + (tasks[7].start + 1) * 2.0**-23]
    made = kvf.quantize(rows.x, whole.left).codes[:, 0, 1:]
    ratio = x[0] / scales[0]
    assert np.abs(ratio).min() < 2.0**-10  # rounds to 0
    assert np.abs(ratio).max() > 480  # beyond the largest
    assert set(np.unique(made)) == {*range(0x7F), *range(0x80, 0xFF)}  # every code but the NaNs
    # golden: one float32 division, one encoding; both by other means here
    expected = kvf.encode((x[3].astype(np.float32) / np.float32(scales[3])).astype(np.float64), "e4m3fn")
    np.testing.assert_array_equal(made[3], expected)


def test_what_is_found_between_borders_is_what_all_scales_one_by_one_give():
    """The reciprocal form of one x and 2^16 scales about each of its first borders: no bisection, all of them."""
    division, reciprocal = (kvf.recipe(f"vllm-0.33/{name}/fp8_per_tensor") for name in ("csrc", "csrc-reciprocal"))
    whole = domain(division, reciprocal)
    assert whole.kind == "borders"
    stretch = replace(next(iter(whole.tasks())), start=77, stop=78)
    found = run(stretch, whole)
    x = np.float32(1) + np.float32(77 / 128)
    exponents = range(-11, 11)  # of x beside a scale in [1, 2)
    assert found.codes == 2 * len(exponents) << 23
    counted = 0
    for exponent in exponents:
        values = x * np.float32(2.0**exponent)
        for start in range(0, 1 << 23, 1 << 21):
            scales = (np.arange(start, start + (1 << 21)) + 0x3F800000).astype(np.uint32).view(np.float32)
            quotients = values / scales, values * (np.float32(1) / scales)
            left, right = (kvf.encode(each, "e4m3fn") for each in quotients)
            counted += 2 * int((left != right).sum())  # of both signs
    assert found.different_codes == counted > 0
    for pair in found.pairs[::50]:
        ratio = np.float32(pair.x) / np.float32(pair.amax), np.float32(pair.x) * (np.float32(1) / np.float32(pair.amax))
        assert [int(kvf.encode(each, "e4m3fn")) for each in ratio] == [pair.left, pair.right]


@pytest.mark.parametrize(
    "text, why",
    [
        ("c = encode(div(x, s), e4m3fn)", ""),
        ("c = encode(mul(x, div(1, s)), e4m3fn)", ""),
        ("c = encode(min_number(max_number(mul(x, rcp(s)), -448), 448), e4m3fn)", ""),
        ("q = round(div(x, s), half_even)\nc = encode(clamp(q, -127, 127), int8)", ""),
        ("c = encode(mul(x, s), e4m3fn)", "grows"),
        ("c = encode(div(mul(x, s), s), e4m3fn)", "both ways"),
        ("c = encode(max(div(x, s), 0.5), e4m3fn)", "both ways"),
        ("q = div(x, s)\nc = encode(select(isnan(q), 448, q), e4m3fn)", ""),
        ("q = div(x, s)\nc = encode(select(lt(q, 1), 448, q), e4m3fn)", "no rule"),
        ("c = encode(sub(div(x, s), 1), e4m3fn)", "no rule"),
    ],
)
def test_a_program_whose_code_falls_as_the_scale_grows_is_told_from_any_other(text, why):
    found = not_monotone(Program.parse(text), "s")
    assert (found == "") == (why == "")
    assert why in found


@pytest.mark.parametrize(
    "text, why",
    [
        ("c = encode(div(x, s), e4m3fn)", ""),
        ("c = encode(mul(x, rcp(s)), e4m3fn)", ""),
        ("c = encode(clamp(div(x, s), -448, 448), e4m3fn)", ""),
        ("q = select(s == 0, 0, div(x, s))\nc = encode(q, e4m3fn)", ""),
        ("c = encode(div(x, max(s, 1e-6)), e4m3fn)", "max"),
        ("c = encode(x, e4m3fn)", "encode"),
        ("c = encode(div(add(x, 1), s), e4m3fn)", "add"),
        ("c = encode(div(to(x, float16), s), e4m3fn)", "to"),
        ("c = encode(to(div(x, s), float16), e4m3fn)", ""),
        ("c = encode(mul(x, s), e4m3fn)", "encode"),
        ("c = encode(div(low_bits(x, 3), s), e4m3fn)", "reads the bits"),
    ],
)
def test_a_program_of_the_ratio_alone_is_told_from_any_other(text, why):
    found = why_not(Program.parse(text), "s")
    assert (found == "") == (why == "")
    assert why in found


@pytest.mark.parametrize("text", ["c = encode(div(x, s), e4m3fn)", "c = encode(mul(x, rcp(s)), e4m3fn)"])
def test_what_passes_the_check_does_not_change_with_a_power_of_two(text):
    how = replace(kvf.recipe("golden/fp8_per_tensor"), name="t", code=Program.parse(text))
    x = np.random.default_rng(0).standard_normal((64, 1, 64)).astype(np.float32)
    made = kvf.quantize(x, how, scale=0.0123).codes
    for power in (-90, -7, 1, 90):
        moved = kvf.quantize(x * np.float32(2.0**power), how, scale=np.float32(0.0123) * np.float32(2.0**power))
        np.testing.assert_array_equal(moved.codes, made)


@pytest.mark.parametrize(
    "left, right, message",
    [
        ("vllm-0.33/triton/int8_per_token_head", "int8_per_token_head", "approximate instructions"),
        ("vllm-0.33/csrc/nvfp4_4over6", "nvfp4", "approximate|several scales"),
        ("int8_per_token_head", "fp8_per_token_head", "do not store codes of one mode"),
        ("none", "none", "do not store codes of one mode"),
        ("modelopt-0.47/fp8_per_tensor", "tensorrt-llm-snapshot/kv/fp8_per_tensor", "more than x / s"),
    ],
)
def test_what_no_enumeration_decides_is_refused_by_name(left, right, message):
    with pytest.raises(kvf.InputError, match=message):
        domain(kvf.recipe(left), kvf.recipe(right))


def test_a_dtype_that_cannot_be_enumerated_is_refused():
    with pytest.raises(kvf.InputError, match="unknown dtype of a proof 'float32'"):
        prove(INT8, INT8, "float32")
    assert set(DTYPES) == {"bfloat16", "float16"}


def test_the_command_says_the_domain_and_lists_the_differences(tmp_path, capsys, monkeypatch):
    from kvformat.proofs import domains

    monkeypatch.setattr(domains, "DTYPES", {"bfloat16": (ml_dtypes.bfloat16, 0x0200)})  # magnitudes up to 2^-123
    out = tmp_path / "list.csv"
    arguments = ["recipes", "prove", "golden/int8_per_token_head", "exact/int8_per_token_head"]
    assert main([*arguments, "--list", str(out)]) == 1
    assert "DIFFERENT in" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert rows
    assert all(Fraction(float.fromhex(row["x"])) and row["left"] != row["right"] for row in rows)
    assert main([*arguments, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["codes"], document["scales"]) == (513 * 514, 513)
    assert document["first"]["x"] == rows[0]["x"]
    assert main(["recipes", "prove", "int8_per_token_head", "golden/int8_per_token_head"]) == 0
    assert "EQUAL on all 263,682 codes and 513 scales" in capsys.readouterr().out
