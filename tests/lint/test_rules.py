"""What is judged and what is not: NaN as a class, padding tokens, given and computed scales, the recipe, chunks."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kvformat.dump import Dump
from kvformat.elements import threads
from kvformat.errors import InputError
from kvformat.layouts import layout as make_layout
from kvformat.verify import check
from tests.verify.cases import CASES, SLOTS, from_bits, judge, one_head, right, written


def names(case):
    return "-".join(filter(None, case))


# --- NaN is one class ---

NAN32, OTHER_NAN32, NEGATIVE_NAN32 = b"\x00\x00\xc0\x7f", b"\x45\x23\xc1\x7f", b"\x01\x00\x80\xff"
ROW = [448.0, np.nan, 1.0, 0.0]


@pytest.mark.parametrize(
    "mode, row, at, byte, holds",
    [
        # fp8: a NaN keeps its element, and the rest of the row
        ("fp8_per_token_head", ROW, 1, b"\x7f", True),
        ("fp8_per_token_head", ROW, 1, b"\xff", True),
        ("fp8_per_token_head", ROW, 1, b"\x7e", False),
        ("fp8_per_token_head", ROW, 1, b"\xfe", False),
        ("fp8_per_token_head", ROW, 2, b"\x7f", False),  # NaN where a number belongs
        ("fp8_per_tensor", ROW, 1, b"\xff", True),
        ("fp8_per_tensor", ROW, 1, b"\x00", False),
        ("fp8_per_tensor", ROW, 3, b"\xff", False),
        # int8: the scale is NaN, all codes are 0
        ("int8_per_token_head", ROW, 4, NAN32, True),
        ("int8_per_token_head", ROW, 4, OTHER_NAN32, True),
        ("int8_per_token_head", ROW, 4, NEGATIVE_NAN32, True),
        ("int8_per_token_head", ROW, 4, b"\x00\x00\x80\x7f", False),  # Inf
        ("int8_per_token_head", ROW, 4, b"\x00\x00\x80\x3f", False),  # 1
        ("int8_per_token_head", ROW, 1, b"\x01", False),  # its codes are compared bit for bit
        ("int8_per_token_head", [1.0, 2.0, 3.0, 127.0], 4, NAN32, False),
        # nvfp4: the block's scale is NaN
        ("nvfp4", ROW * 4, 32, b"\x7f", True),
        ("nvfp4", ROW * 4, 32, b"\xff", True),
        ("nvfp4", ROW * 4, 32, b"\x7e", False),
        ("nvfp4", [1.0] * 16, 32, b"\x7f", False),
        # none: bfloat16
        ("none", ROW, 2, b"\xc1\x7f", True),
        ("none", ROW, 2, b"\x81\xff", True),
        ("none", ROW, 2, b"\x80\x7f", False),  # Inf
        ("none", ROW, 4, b"\xc0\x7f", False),
    ],
)
def test_nan_equals_nan_whatever_its_bits_and_nothing_else(mode, row, at, byte, holds):
    layout, key, value, pages = one_head(mode, [row])
    pages[0, at : at + len(byte)] = list(byte)
    report = judge(layout, key, value, pages, np.array([0]))
    assert report.ok is holds, str(report)
    assert report.mismatches == (0 if holds else 1)


@pytest.mark.parametrize(
    "dtype, holds, differs",
    [
        ("float16", b"\x01\xfc", b"\x00\xfc"),
        ("bfloat16", b"\x81\xff", b"\x80\xff"),
        ("float32", b"\x01\x00\x80\xff", b"\x00\x00\x80\xff"),
    ],
)
def test_in_mode_none_a_nan_payload_is_no_difference_in_any_dtype(dtype, holds, differs):
    layout = make_layout("vllm-0.33", mode="none", block_size=1, num_kv_heads=1, head_size=2, dtype=dtype)
    x, slots = np.array([[[np.nan, 1.0]]], np.float32), np.array([0])
    for pattern, ok in ((holds, True), (differs, False)):
        pages = written(layout, x, x, slots, 1)
        pages[0, : len(pattern)] = list(pattern)
        assert judge(layout, x, x, pages, slots).ok is ok


@pytest.mark.parametrize("mode, at", [("fp8_per_token_head", 1), ("fp8_per_tensor", 1), ("none", 3)])
def test_zeros_of_both_signs_are_different_codes(mode, at):
    layout, key, value, pages = one_head(mode, [[448.0, 0.0, 1.0, 2.0]])
    pages[0, at] ^= 0x80
    report = judge(layout, key, value, pages, np.array([0]))
    assert (report.status, report.mismatches) == (1, 1)
    assert report.first["dim"] == 1


# --- padding tokens ---


def test_what_a_padding_token_holds_is_not_judged():
    for case in CASES:
        _, layout, key, value, pages = right(case)
        if "tensor" in layout.mode or layout.mode == "nvfp4":
            continue  # there it takes part in the computed scale, see below
        other = [side.copy() for side in (key, value)]
        for side in other:
            side[SLOTS < 0] = np.nan
        assert judge(layout, *other, pages).ok, case


@pytest.mark.parametrize("slots", [[-1], [-1, -(2**40), -3]])
def test_a_dump_without_any_slot_cannot_be_judged(slots):
    x = np.ones((len(slots), 1, 4), np.float32)
    layout = make_layout("vllm-0.33", mode="int8_per_token_head", block_size=4, num_kv_heads=1, head_size=4)
    with pytest.raises(InputError, match="nothing to judge") as error:
        judge(layout, x, x, np.zeros((1, layout.page_bytes), np.uint8), np.array(slots))
    assert "\n" not in str(error.value)


# --- scales of the whole tensor ---


@pytest.mark.parametrize("mode, largest, row", [("fp8_per_tensor", 448, 4), ("nvfp4", 2688, 16)])
def test_a_computed_scale_counts_the_rows_of_padding_tokens(mode, largest, row):
    key = np.zeros((3, 1, row), np.float32)
    key[0, 0, 0], key[1, 0, 1], key[2, 0, 2] = largest / 2, 2 * largest, largest  # the largest row is padding
    value = key / 2
    layout, *_ = one_head(mode, np.ones((1, row)))
    slots = np.array([0, -1, 2])
    pages = written(layout, key, value, slots, 1, k_scale=2, v_scale=1)
    report = judge(layout, key, value, pages, slots)
    assert report.ok, str(report)
    assert report.scales == {"k": "2.0 (computed)", "v": "1.0 (computed)"}
    assert "k_scale 2.0 (computed)" in str(report)
    # without the padding row the scale would be 1, and the code of `largest` another one
    assert not judge(layout, key[[0, 2]], value[[0, 2]], pages, slots[[0, 2]]).ok


@pytest.mark.parametrize("mode, row", [("fp8_per_tensor", 4), ("nvfp4", 16)])
def test_a_given_scale_is_used_and_the_other_side_is_computed(mode, row):
    key = np.arange(1, 2 * row + 1, dtype=np.float32).reshape(2, 1, row)
    layout, *_ = one_head(mode, np.ones((1, row)))
    slots = np.array([1, 0])
    pages = written(layout, key, key, slots, 1, k_scale=0.25)
    report = judge(layout, key, key, pages, slots, k_scale=0.25)
    assert report.ok, str(report)
    assert report.scales["k"] == "0.25 (given)"
    assert report.scales["v"].endswith(" (computed)")
    assert not judge(layout, key, key, pages, slots, k_scale=0.125).ok
    assert not judge(layout, key, key, pages, slots).ok


def test_modes_without_a_tensor_scale_report_none():
    layout, key, value, pages = one_head("int8_per_token_head", [[1.0, 2.0, 3.0, 4.0]])
    report = judge(layout, key, value, pages, np.array([0]))
    assert report.scales == {"k": None, "v": None}
    assert "k_scale" not in str(report)


# --- the recipe ---


def test_a_recipe_that_the_dump_does_not_declare_is_said_to_be_assumed():
    _, layout, key, value, pages = right(CASES[3])
    silent = judge(layout, key, value, pages, recipe=None)
    declared = judge(layout, key, value, pages, recipe="int8_per_token_head")
    assert silent.recipe == "vllm-0.33/triton/int8_per_token_head"
    assert declared.recipe == "golden/int8_per_token_head"
    note = "the dump declares no recipe; vllm-0.33/triton/int8_per_token_head is the one that vllm-0.33 uses"
    assert note in str(silent)
    assert "declares no recipe" not in str(declared)
    assert silent.to_json()["recipe_assumed"] is True
    assert declared.to_json()["recipe_assumed"] is False


def test_the_declared_recipe_is_the_one_that_judges():
    # exactly x / (22 g) lies above 1.75, in float32 below: golden has code 3, exact code 4
    g, x = from_bits(0x3AD019FB, 0x3D7A5F42)
    row = [132 * g, x] + [0] * 14
    for writer, codes in (("golden/nvfp4", 0x37), ("exact/nvfp4", 0x47)):
        layout, key, value, pages = one_head("nvfp4", [row], recipe=writer, k_scale=g, v_scale=g)
        assert pages[0, 0] == codes
        for judged_by in ("golden/nvfp4", "exact/nvfp4"):
            report = judge(layout, key, value, pages, np.array([0]), recipe=judged_by, k_scale=g, v_scale=g)
            assert report.recipe == judged_by
            assert report.mismatches == (0 if judged_by == writer else 2)
            assert "float32" not in str(report.first and report.first["quotient"]["exact"])


# --- chunks ---


@pytest.mark.parametrize("chunk", [1, 300, 3 * 2 * 64])
@pytest.mark.parametrize("case", CASES[:9], ids=names)
def test_in_chunks_the_report_is_the_same(monkeypatch, case, chunk):
    _, layout, key, value, pages = right(case)
    broken = pages.copy()
    broken[:, ::3] ^= 0x5A
    for dump_pages in (pages, broken):
        dump = Dump.from_arrays(key, value, dump_pages, SLOTS, layout=layout, recipe=f"golden/{layout.mode}")
        with monkeypatch.context() as patch:
            patch.setattr(threads, "TILE", 1 << 22)
            whole = check(dump)
        monkeypatch.setattr(threads, "TILE", chunk)
        parts = check(dump)
        assert parts.to_json() == whole.to_json()
        assert str(parts) == str(whole)
        assert whole.ok is (dump_pages is pages)


def test_progress_grows_to_the_number_of_tokens(monkeypatch):
    _, layout, key, value, pages = right(CASES[0])
    monkeypatch.setattr(threads, "TILE", 3 * 2 * 64)  # three tokens
    calls = []
    check(
        Dump.from_arrays(key, value, pages, SLOTS, layout=layout, recipe=f"golden/{layout.mode}"),
        progress=lambda *call: calls.append(call),
    )
    assert calls == [(3, 7), (6, 7), (7, 7)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_chunk_is_as_many_tokens_as_the_longer_side_allows(monkeypatch, dtype):
    sizes = {"block_size": 4, "num_kv_heads": 1, "head_size": 4, "head_size_v": 8}
    layout = make_layout("vllm-0.33", mode="fp8_per_tensor", **sizes)
    key, value = np.ones((5, 1, 4), dtype), np.ones((5, 1, 8), dtype)
    pages = written(layout, key, value, np.arange(5), 2)
    monkeypatch.setattr(threads, "TILE", 16)
    calls = []
    dump = Dump.from_arrays(key, value, pages, np.arange(5), layout=layout, recipe=f"golden/{layout.mode}")
    assert check(dump, progress=lambda *call: calls.append(call)).ok
    assert calls == [(2, 5), (4, 5), (5, 5)]
