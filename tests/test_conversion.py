"""fn and fnuz: the byte stays, the scale doubles, every value is what it was; a byte that cannot stay is named."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.conversion import Cache, convert, translation
from kvformat.errors import InputError

CSRC, FNUZ, E5M2 = (f"vllm-0.33/{name}/fp8_per_tensor" for name in ("csrc", "rocm-fnuz", "csrc-e5m2"))
HEADS, HEADS_FNUZ = (f"vllm-0.33/{name}/fp8_per_token_head" for name in ("triton", "triton-fnuz"))
SIZES = {"block_size": 4, "num_kv_heads": 1, "head_size": 64}
#: what e4m3fnuz has no byte for: -0, a second NaN; and what e4m3fn has none for: 240 and -240
LOST_FN, LOST_FNUZ = {0x80, 0xFF}, {0x7F, 0xFF}


def held(codes, recipe=CSRC, k_scale=0.5, v_scale=0.25, mode="fp8_per_tensor", scales=None):
    """A cache of one page whose K codes begin with these bytes, the others zero."""
    page = kvf.layout("vllm-0.33", mode=mode, **SIZES)
    pages = np.zeros((1, page.page_bytes), np.uint8)
    rows = np.zeros((4, 1, 64), np.uint8)
    rows.ravel()[: len(codes)] = codes
    page.region(side="k").write(pages, [0] * 4, range(4), rows)
    for side in "kv" if scales is not None else "":
        each = np.resize(np.asarray(scales, np.float32), (4, 1, 1)).view(np.uint8)
        page.region(side=side, part="scale").write(pages, [0] * 4, range(4), each)
    given = (None, None) if scales is not None else (np.float32(k_scale), np.float32(v_scale))
    return Cache(pages, page, kvf.recipe(recipe), *given)


def values(cache, dtype):
    """The values of its K codes, by ml_dtypes, in float64."""
    page = cache.layout
    rows = page.region(side="k").read(cache.pages, [0] * 4, range(4)).view(dtype).astype(np.float64)
    if page.mode == "fp8_per_tensor":
        return rows * float(cache.k_scale)
    return rows * page.region(side="k", part="scale").read(cache.pages, [0] * 4, range(4)).view("<f4").astype(
        np.float64
    )


def same(a, b):
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[a == 0]), np.signbit(b[b == 0]))


def test_every_e4m3fn_byte_that_can_stay_stays_with_its_value_and_comes_back():
    codes = [code for code in range(256) if code not in LOST_FN]
    start = held(codes)
    made = convert(start, recipe=FNUZ)
    assert (made.k_scale, made.v_scale) == (np.float32(1), np.float32(0.5))
    assert same(values(start, ml_dtypes.float8_e4m3fn), values(made, ml_dtypes.float8_e4m3fnuz))
    finite = np.isin(start.pages, [0x7F], invert=True)
    assert np.array_equal(made.pages[finite], start.pages[finite])
    back = convert(made, recipe=CSRC)
    assert np.array_equal(back.pages, start.pages)
    assert (back.k_scale, back.v_scale) == (start.k_scale, start.v_scale)


def test_every_e4m3fnuz_byte_that_can_stay_stays_with_its_value_and_comes_back():
    start = held([code for code in range(256) if code not in LOST_FNUZ], FNUZ)
    made = convert(start, recipe=CSRC)
    assert same(values(start, ml_dtypes.float8_e4m3fnuz), values(made, ml_dtypes.float8_e4m3fn))
    assert np.array_equal(convert(made, recipe=FNUZ).pages, start.pages)


def refusal(cache, recipe):
    """Why the cache has no such writing, None where it has one."""
    try:
        convert(cache, recipe=recipe)
    except InputError as error:
        return str(error)
    return None


@pytest.mark.parametrize("recipe, other, lost", [(CSRC, FNUZ, LOST_FN), (FNUZ, CSRC, LOST_FNUZ)])
def test_exactly_the_bytes_without_a_counterpart_are_refused(recipe, other, lost):
    refused = {code: refusal(held([0, 0, code], recipe), other) for code in range(256)}
    assert {code for code, why in refused.items() if why} == lost
    for code in lost:
        assert refused[code].startswith(f"K data of slot 0, head 0, dim 2 (byte 2 of page 0) is 0x{code:02X}, ")


@pytest.mark.parametrize(
    "code, recipe, other, why",
    [
        (0x80, CSRC, FNUZ, "-0, which e4m3fnuz does not have; its sign can be dropped"),
        (0xFF, CSRC, FNUZ, "a NaN other than 0x7F: e4m3fnuz would not give it back"),
        (0x7F, FNUZ, CSRC, "240, for which e4m3fn has no code at 0.5 times the scale"),
        (0xFF, FNUZ, CSRC, "-240, for which e4m3fn has no code at 0.5 times the scale"),
    ],
)
def test_a_refusal_says_what_would_be_lost(code, recipe, other, why):
    with pytest.raises(InputError) as error:
        convert(held([0] * 70 + [code], recipe), recipe=other)
    # a cell is K and V: dim 6 of slot 1 is byte 128 + 6
    assert str(error.value) == f"K data of slot 1, head 0, dim 6 (byte 134 of page 0) is 0x{code:02X}, {why}"


def test_the_sign_of_a_zero_is_dropped_only_if_asked():
    start = held([0x00, 0x80, 0x81, 0x01])
    made = convert(start, recipe=FNUZ, drop_zero_signs=True)
    assert made.layout.region(side="k").read(made.pages, [0], [0]).ravel()[:4].tolist() == [0x00, 0x00, 0x81, 0x01]
    assert refusal(held([0xFF]), FNUZ).endswith("a NaN other than 0x7F: e4m3fnuz would not give it back")
    back = convert(held([0x01, 0x00], FNUZ), recipe=CSRC, drop_zero_signs=True)
    assert back.layout.region(side="k").read(back.pages, [0], [0]).ravel()[:2].tolist() == [0x01, 0x00]


def test_scales_in_the_page_double_and_come_back():
    start = held(range(1, 127), HEADS, mode="fp8_per_token_head", scales=[0.75, 1e-6, 3.0, 2.0**126])
    made = convert(start, recipe=HEADS_FNUZ)
    assert same(values(start, ml_dtypes.float8_e4m3fn), values(made, ml_dtypes.float8_e4m3fnuz))
    stored = made.layout.region(side="v", part="scale").read(made.pages, [0] * 4, range(4)).view("<f4").ravel()
    assert stored.tolist() == [1.5, 2 * np.float32(1e-6), 6.0, 2.0**127]
    assert np.array_equal(convert(made, recipe=HEADS).pages, start.pages)


@pytest.mark.parametrize(
    "recipe, other, scale, says",
    [
        (HEADS, HEADS_FNUZ, 2.0**127, "1.7014118e+38, which float32 cannot hold 2 times"),
        (HEADS_FNUZ, HEADS, 2.0**-149, "1e-45, which float32 cannot hold 0.5 times"),
    ],
)
def test_a_scale_that_has_no_double_or_half_is_refused(recipe, other, scale, says):
    cache = held([1], recipe, mode="fp8_per_token_head", scales=[1.0, 1.0, scale, 1.0])
    # a cell has 64 + 4 + 64 + 4 bytes, the K scale of slot 2 lies at 2 * 136 + 64
    assert refusal(cache, other) == f"K scale of slot 2, head 0, dim 0 (byte 336 of page 0) is {says}"


def test_a_tensor_scale_that_has_no_double_is_refused():
    with pytest.raises(InputError, match=r"v_scale is 2e\+38, which float32 cannot hold 2 times"):
        convert(held([1], v_scale=2e38), recipe=FNUZ)


@pytest.mark.parametrize(
    "recipe, says",
    [
        ("golden/fp8_per_tensor", "are of the same format: only who made them differs"),
        (HEADS_FNUZ, "do not store the same kinds of scales"),
        ("golden/int8_per_token_head", "e4m3fn codes have no counterparts in int8"),
        ("golden/none", "are of the same format"),
    ],
)
def test_a_recipe_that_is_no_other_writing_of_the_same_values_is_refused(recipe, says):
    with pytest.raises(InputError, match=says):
        convert(held([1]), recipe=recipe)


def test_between_formats_of_unlike_precision_what_is_exact_stays():
    made = translation(kvf.recipe(CSRC), kvf.recipe(E5M2))
    every = np.arange(256, dtype=np.uint8)
    narrow = set(every.view(ml_dtypes.float8_e5m2).astype(np.float64).tolist())
    for code, value in enumerate(every.view(ml_dtypes.float8_e4m3fn).astype(np.float64)):
        stays = code == 0x7F if np.isnan(value) else value / made.factor in narrow
        assert (made.table[code] >= 0) == stays


def test_layout_and_codes_change_together_in_either_order():
    start = held(range(1, 100))
    target = kvf.layout("flashinfer", mode="fp8_per_tensor", order="HND", **SIZES)
    once = convert(start, target, FNUZ)
    ways = [convert(convert(start, target), recipe=FNUZ), convert(convert(start, recipe=FNUZ), target)]
    for other in ways:
        assert np.array_equal(other.pages, once.pages)
        assert (other.layout, other.recipe, other.k_scale) == (once.layout, once.recipe, once.k_scale)
    back = convert(once, start.layout, CSRC)
    assert np.array_equal(back.pages, start.pages)


def test_nothing_asked_is_nothing_done():
    start = held(range(256))
    assert np.array_equal(convert(start).pages, start.pages)
    assert np.array_equal(convert(start, start.layout, CSRC).pages, start.pages)
