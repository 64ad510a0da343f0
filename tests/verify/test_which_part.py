"""Which part is wrong: each is judged beside what is there, what was looked at is counted, a bad scale is seen."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.cache import PagedCache
from kvformat.recipes.quantizer import Quantized
from kvformat.verify.explain import explain_code
from kvformat.verify.reach import Reach

TOKENS, HEADS, DIM, BLOCK = 16, 2, 64, 4
SLOTS = np.arange(TOKENS)
RNG = np.random.default_rng(12)
KEY, VALUE = RNG.standard_normal((2, TOKENS, HEADS, DIM)).astype(ml_dtypes.bfloat16)


def written(recipe, *, key=KEY, value=VALUE, **scales):
    how = kvf.recipe(recipe)
    made = kvf.layout("vllm-0.33", mode=how.mode, block_size=BLOCK, num_kv_heads=HEADS, head_size=DIM)
    cache = PagedCache(made, TOKENS // BLOCK, **scales)
    cache.write(key, value, SLOTS, recipe=how)
    return cache


def dump(cache, recipe, *, key=KEY, value=VALUE, slots=SLOTS, **scales):
    return kvf.Dump.from_arrays(key, value, cache.pages, slots, layout=cache.layout, recipe=recipe, **scales)


def scales_of(cache, side="k"):
    """A writable view of the float32 scales of a side: (blocks, slots, heads)."""
    region = cache.layout.region(side=side, part="scale")
    cells = cache.pages.reshape(len(cache.pages), BLOCK, HEADS, -1)
    start = region.offset % cells.shape[-1]
    return cells[..., start : start + 4].view("<f4")[..., 0]


INLINE = ("golden/int8_per_token_head", "vllm-0.33/triton/int8_per_token_head", "golden/fp8_per_token_head",
          "vllm-0.33/triton/fp8_per_token_head")  # fmt: skip


@pytest.mark.parametrize("recipe", INLINE)
def test_where_only_the_scales_are_doubled_only_the_scales_differ(recipe):
    cache = written(recipe)
    scales_of(cache)[...] *= 2
    report = kvf.check(dump(cache, recipe))
    k = report.tallies[0]
    assert (report.status, k.wrong) == (1, {"scale": TOKENS * HEADS, "code": 0})
    assert f"K codes: {TOKENS * HEADS * DIM:,} equal" in str(report)


@pytest.mark.parametrize("recipe", INLINE)
def test_codes_that_follow_a_wrong_scale_are_said_to_be_right_for_it(recipe):
    cache, other = written(recipe), written(recipe, key=(KEY * 2).astype(KEY.dtype))
    # the codes of K beside the scales of 2 K, rounded as those scales ask
    made = kvf.quantize(KEY, kvf.recipe(recipe))
    doubled = dataclasses.replace(made, scales=made.scales * 2)
    codes = np.rint(KEY.astype(np.float32) / doubled.scales[..., None])
    cells = cache.pages.reshape(len(cache.pages), BLOCK, HEADS, -1)
    fp8 = "fp8" in recipe
    cells[..., :DIM] = (
        (KEY.astype(np.float32) / doubled.scales[..., None]).astype(ml_dtypes.float8_e4m3fn) if fp8
        else codes.astype(np.int8)
    ).view(np.uint8).reshape(TOKENS // BLOCK, BLOCK, HEADS, DIM)  # fmt: skip
    scales_of(cache)[...] = scales_of(other)
    report = kvf.check(dump(cache, recipe))
    tally = report.tallies[0]
    if fp8:  # a power of two in the scale moves the codes by a power of two
        assert tally.wrong["code"] > 1000
        assert tally.consistent == tally.wrong["code"]
        assert "differ, all right for the scales that are there" in str(report)
    else:  # ties go another way in the engine: all but a few
        assert tally.wrong["code"] >= tally.consistent > 0.99 * tally.wrong["code"] > 1000
    assert report.to_json()["where"]["k"]["beside_wrong_scales"]["right_for_the_scale_there"] == tally.consistent


def test_codes_that_fit_no_scale_are_not_said_to():
    cache = written("golden/int8_per_token_head")
    cells = cache.pages.reshape(len(cache.pages), BLOCK, HEADS, -1)
    cells[..., :DIM] = RNG.integers(0, 256, cells[..., :DIM].shape, np.uint8)
    scales_of(cache)[...] *= np.float32(1.7)
    report = kvf.check(dump(cache, "golden/int8_per_token_head"))
    assert report.tallies[0].consistent < 0.05 * report.tallies[0].wrong["code"]


def test_an_expected_code_is_never_the_found_one():
    """A scale some ulp off is allowed; codes of the IEEE scale beside it may then be wrong, and are shown as such."""
    recipe = "vllm-0.33/triton/int8_per_token_head"
    x = np.zeros((TOKENS, HEADS, DIM), np.float32)
    x[..., 0] = RNG.uniform(100, 200, (TOKENS, HEADS)).astype(np.float32)
    scale = kvf.quantize(x, recipe).scales[..., None]
    # half a code, and a few ulp more: the engine rounds up
    x[..., 1:] = (np.arange(1, DIM) + 0.5) * scale * (1 + np.arange(1, DIM) % 8 * np.float32(2.0**-23))
    cache = written(recipe, key=x, value=x)
    outcomes = []
    for ulps in range(-4, 5):
        moved = (scale[..., 0].view(np.int32) + ulps).view(np.float32)
        scales_of(cache)[...] = moved.reshape(TOKENS // BLOCK, BLOCK, HEADS)
        report = kvf.check(dump(cache, recipe, key=x, value=x))
        first = report.first
        outcomes.append(first and first["part"])
        if first and first["part"] == "code":
            assert first["expected"]["code"] != first["found"]["code"]
            assert first["found"]["code"] not in first["allowed"]
            assert first["expected"]["code"] in first["allowed"]
            there = moved[first["token"], first["head"]]
            assert first["scale"]["s"]["bits"] == f"0x{there.view(np.uint32):08X}"
    assert "code" in outcomes
    assert outcomes[4] is None


@pytest.mark.parametrize(("stray", "shown"), [(0x1D, "0x1D"), (0x0C, "0xC"), (0xFD, "0xFD")])
def test_stray_high_bits_of_a_code_are_shown(stray, shown):
    x = np.full((1, 1, 16), -3, np.float32)
    x[0, 0, 0] = 6
    right = kvf.quantize(x, "golden/nvfp4", scale=1)
    assert right.codes[0, 0, 1] == 0b1_10_1  # -3
    wrong = right.codes.copy()
    wrong[0, 0, 1] = stray
    told = explain_code(x[0, 0], right, dataclasses.replace(right, codes=wrong), 0, 1)
    assert (told["expected"]["code"], told["found"]["code"]) == ("0xD", shown)


def test_an_unsigned_nibble_where_int4_is_signed_is_shown_as_it_is():
    how = kvf.recipe("vllm-0.33/triton/int4_per_token_head")
    codes = np.full((1, 1, 16), -3, np.int8)
    right = Quantized(codes, np.full((1, 1), 0x3F800000, np.uint32).view(np.float32), np.float32(1), how)
    found = dataclasses.replace(right, codes=np.full((1, 1, 16), 13, np.int8))
    told = explain_code(np.full(16, -3, np.float32), right, found, 0, 1)
    assert (told["expected"]["code"], told["found"]["code"]) == ("-3", "13")


def test_what_was_looked_at_and_what_was_not_is_counted():
    cache = written("golden/int8_per_token_head")
    slots = np.where(SLOTS < 3, SLOTS, -1)
    report = kvf.check(dump(cache, "golden/int8_per_token_head", slots=slots))
    assert "looked at: 3 of 16 tokens (13 without a slot), 3 of 16 slots" in str(report)
    counts = {name: report.to_json()[name] for name in ("tokens", "judged", "slots")}
    assert counts == {"tokens": 16, "judged": 3, "slots": 16}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("scale", "saturated", "vanished"), [(1.0, 0, 0), (1 / 463, 0, 0), (1 / 512, 5, 0),
                                                              (2.0**11, 0, 5), (1.0e4, 0, 6)])  # fmt: skip
def test_the_reach_of_a_scale_by_hand(dtype, scale, saturated, vanished):
    # fp8: 448 s is the largest value, 464 s the border to overflow, 2^-10 s the border to zero (a tie, to zero)
    x = np.zeros((1, 1, 16), dtype)
    x[0, 0, :9] = [1, -1, 1, 1, 1, 4, np.inf, np.nan, -0.0]
    x[0, 0, 5] = 4 if scale > 1 else 0
    how = kvf.recipe("golden/fp8_per_tensor").for_input(np.dtype(dtype).name)
    reach = Reach.of(how, np.float32(scale))
    made = kvf.quantize(x, how, scale=scale)
    reach.add(x, made)
    assert reach.largest == pytest.approx(448 * scale)
    assert (reach.saturated, reach.vanished) == (saturated, vanished)


def test_a_given_scale_20_times_too_small_holds_and_is_warned_about():
    amax = float(np.abs(KEY.astype(np.float32)).max())
    scale = np.float32(amax / 448 / 20)
    cache = written("golden/fp8_per_tensor", k_scale=scale, v_scale=np.float32(amax / 448))
    report = kvf.check(dump(cache, "golden/fp8_per_tensor", k_scale=scale, v_scale=np.float32(amax / 448)))
    assert report.ok
    share = np.mean(np.abs(KEY.astype(np.float64)) > 464 * np.float64(scale))
    assert share > 0.8
    assert f"WARNING: k_scale is too small for K: {100 * share:.2g} % saturates" in str(report)
    assert "too small for V" not in str(report)
    assert report.to_json()["where"]["k"]["reach"]["saturated"] == round(share * KEY.size)


def test_an_nvfp4_scale_that_is_too_large_takes_whole_blocks_to_zero_and_one_too_small_saturates():
    for factor, words in ((2.0**-8, "too small for K"), (2.0**20, "too large for K"), (1, "none of K lies beyond")):
        amax = float(np.abs(KEY.astype(np.float32)).max())
        scale = np.float32(amax / 2688 * factor)
        cache = written("golden/nvfp4", k_scale=scale, v_scale=scale)
        assert words in str(kvf.check(dump(cache, "golden/nvfp4", k_scale=scale, v_scale=scale)))
