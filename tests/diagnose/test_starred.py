"""Twelve public bugs, each planted by hand as it was reported, and what the diagnosis calls them."""

# ruff: noqa: ARG001, ARG005 a writer hands all of its numbers to each of its steps

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kvformat import diagnose
from tests.diagnose.by_hand import (
    BF16,
    BLOCK,
    E4M3,
    E5M2,
    F32,
    HEADS,
    SLOTS,
    dump_of,
    e2m1,
    e4m3,
    int8,
    spread,
    write,
)
from tests.diagnose.test_faults import guarded

TOKENS, DIMS = len(SLOTS), 64


def normal(seed, tokens=TOKENS, dims=DIMS):
    return np.random.default_rng(seed).normal(size=(tokens, HEADS, dims)).astype(F32)


def named(dump):
    found = diagnose(dump)
    first = found.explanations[0]
    assert first.complete, str(found)
    assert found.status == 1
    return first


def with_first(values, seed=1, other=0.0):
    """K or V whose rows begin with the values of a report."""
    x = normal(seed)
    x[:, :, :] = other
    x[:, :, : len(values)] = np.array(values, F32)
    return x


def test_float32_to_e4m3_by_way_of_float16():
    """triton-lang/triton#11753: 1.0625001 gives 1.0; 272.156555 gives 256."""
    reported = [1.0625001, 272.156555, 400.199585, 136.002075]
    key, value = with_first(reported), normal(2) * 100
    faulty = {"given": 1, "encode": lambda q: e4m3(truncated_to_float16(q))}
    codes, scales = write("fp8_per_tensor", key, **faulty)
    assert codes[0, 0, :4].view(E4M3).astype(F32).tolist() == [1.0, 256.0, 384.0, 128.0]
    pages = spread("fp8_per_tensor", [(codes, scales), write("fp8_per_tensor", value, **faulty)])
    first = named(dump_of("fp8_per_tensor", key, value, pages, k_scale=1.0, v_scale=1.0))
    assert first.faults == ("double-rounding",)
    assert first.first.variants == ("by way of float16, truncated",)


def truncated_to_float16(q):
    return (q.astype(F32).view(np.uint32) & np.uint32(0xFFFF_E000)).view(F32)


def test_int8_writer_truncates():
    """vllm-project/vllm#45361: [127, 0.6, -0.6, 1.5, -1.5, 2.5] gives [127, 0, 0, 1, -1, 2]."""
    key = with_first([127, 0.6, -0.6, 1.5, -1.5, 2.5])
    faulty = {"encode": lambda q: int8(np.trunc(np.clip(q, -127, 127)))}
    codes, scales = write("int8_per_token_head", key, **faulty)
    assert codes[0, 0, :6].view(np.int8).tolist() == [127, 0, 0, 1, -1, 2]
    pages = spread("int8_per_token_head", [(codes, scales), write("int8_per_token_head", normal(2), **faulty)])
    first = named(dump_of("int8_per_token_head", key, normal(2), pages))
    assert first.faults == ("round-toward-zero",)


def test_a_reference_narrows_float64_to_float32_before_float8():
    """jax-ml/ml_dtypes#401, until 0.6: -431.99999999999994 gave -448, since its float32 is the tie -432."""
    assert np.float64(-431.99999999999994).astype(F32).astype(E4M3).astype(F32) == -448
    # quotients right below a tie: x = 432 * s rounded down, in real numbers less than 432
    scale = F32(0.0371)
    steps = np.unique(np.abs(np.arange(126, dtype=np.uint8).view(E4M3).astype(np.float64)))
    ties = ((steps[1:] + steps[:-1]) / 2 * float(scale)).astype(F32)
    near = np.stack([np.nextafter(ties, F32(0)), ties, np.nextafter(ties, F32(1e9))]).reshape(-1)
    key = np.resize(near, (TOKENS, HEADS, DIMS)).astype(F32)
    value = -key[::-1]

    def encode(quotients):
        return quotients.astype(np.float64).astype(F32).astype(E4M3).view(np.uint8)

    def quotient(x, s, g):
        return x.astype(np.float64) / np.float64(s)

    sides = [write("fp8_per_tensor", x, given=scale, encode=encode, quotient=quotient) for x in (key, value)]
    pages = spread("fp8_per_tensor", sides)
    dump = dump_of("fp8_per_tensor", key, value, pages, recipe="exact/fp8_per_tensor", k_scale=scale, v_scale=scale)
    first = named(dump)
    assert (first.faults, first.first.variants) == (("double-rounding",), ("by way of float32",))


def test_e2m1_midpoints_go_away_from_zero():
    """ROCm/aiter#3992: [.25, 1.25, 2.5, 5.0] gives [.5, 1.5, 3, 6]."""
    key = with_first([6, 0.25, 1.25, 2.5, 5.0, -0.25, -2.5])
    faulty = {"given": F32(1), "encode": lambda q: e2m1(q, "up"), "scale": lambda a, g: a / F32(6)}
    made = write("nvfp4", key, **faulty)
    assert [made[0][0, 0, i // 2] >> 4 * (i % 2) & 15 for i in range(1, 5)] == [1, 3, 5, 7]
    pages = spread("nvfp4", [made, write("nvfp4", with_first([3, -1.25]), **faulty)])
    first = named(dump_of("nvfp4", key, with_first([3, -1.25]), pages, k_scale=1.0, v_scale=1.0))
    assert first.faults == ("round-half-away",)


def test_multiplying_by_the_reciprocal_is_not_dividing():
    """arch-hdl-lang/arch-com#905: 0.02392577938735485 under 0.013671875 is code 3 by division, 4 by reciprocal."""
    x = F32(0.02392577938735485)
    key = normal(1) * 0.001
    key[:, :, ::16], key[:, :, 1::16] = 6 * 0.013671875, x

    def quotient(x, s, g):
        return guarded(x, s * g, x * (F32(1) / (s * g)))

    codes, scales = write("nvfp4", key, given=F32(1), quotient=quotient)
    assert (codes[0, 0, 0] >> 4, scales[0, 0, 0]) == (4, 0x07)
    pages = spread("nvfp4", [(codes, scales), write("nvfp4", key[::-1], given=F32(1), quotient=quotient)])
    first = named(dump_of("nvfp4", key, key[::-1], pages, k_scale=1.0, v_scale=1.0))
    assert first.faults == ("reciprocal",)


def test_codes_of_the_exact_scale_beside_the_rounded_one():
    """kekzl/imp#250: block [6.4, 2.7, 0...], stored scale 1.125: 2.7 becomes code 5, which decodes to 3.375."""
    key = with_first([6.4, 2.7])
    faulty = {"given": F32(1), "used": lambda exact, after: exact}
    codes, scales = write("nvfp4", key, **faulty)
    assert (codes[0, 0, 0] >> 4, scales[0, 0, 0]) == (5, 0x39)
    pages = spread("nvfp4", [(codes, scales), write("nvfp4", normal(2), **faulty)])
    first = named(dump_of("nvfp4", key, normal(2), pages, k_scale=1.0, v_scale=1.0))
    assert first.faults == ("unstored-scale",)


def test_overflow_is_nan():
    """pytorch/pytorch#178817: [464, 465, 1000, -1000] gives [448, NaN, NaN, NaN] where the cast does not saturate."""
    key = with_first([464, 465, 1000, -1000])
    codes, scales = write("fp8_per_tensor", key, given=1, encode=lambda q: q.astype(E4M3).view(np.uint8))
    assert codes[0, 0, :4].tolist() == [0x7E, 0x7F, 0x7F, 0xFF]
    value = normal(2) * 500
    made = write("fp8_per_tensor", value, given=1, encode=lambda q: q.astype(E4M3).view(np.uint8))
    pages = spread("fp8_per_tensor", [(codes, scales), made])
    first = named(dump_of("fp8_per_tensor", key, value, pages, k_scale=1.0, v_scale=1.0))
    assert first.faults == ("no-saturation",)


def test_a_block_of_zeros_has_a_nan_scale():
    """NVIDIA/Model-Optimizer#1397: the amax of zeros is replaced by 1.0, and 448 / (5 / 6) does not fit: 0x7F."""
    key = normal(1)
    key[3:9, :, 16:32] = 0
    key[0, 0, 0] = 5.0
    shared = F32(5 / 2688)

    def stored(exact):
        zero = exact == 0
        scaled = np.where(zero, F32(1) * F32(448) / (F32(5) / F32(6)), exact)
        return np.where(zero, scaled.astype(E4M3).view(np.uint8), e4m3(scaled)).astype(np.uint8)

    def quotient(x, s, g):
        return np.where(x == 0, x, x / (s * g)).astype(F32)

    faulty = {"given": shared, "stored": stored, "quotient": quotient}
    codes, scales = write("nvfp4", key, **faulty)
    assert scales[3, 0, 1] == 0x7F
    pages = spread("nvfp4", [(codes, scales), write("nvfp4", normal(2), **faulty)])
    first = named(dump_of("nvfp4", key, normal(2), pages, k_scale=shared, v_scale=shared))
    assert first.faults == ("zero-block-rule",)


def test_e4m3_bytes_are_read_as_e5m2():
    """vllm-project/vllm#54341: [1, 2, 3.5, .25] is stored as 38 40 46 28, whatever the cache's dtype says."""
    key = with_first([1, 2, 3.5, 0.25])
    made = write("fp8_per_tensor", key, given=1)
    assert made[0][0, 0, :4].tolist() == [0x38, 0x40, 0x46, 0x28]
    assert made[0][0, 0, :4].view(E5M2).astype(F32).tolist() == [0.5, 2.0, 6.0, 0.03125]
    pages = spread("fp8_per_tensor", [made, write("fp8_per_tensor", normal(2), given=1)])
    recipe = "vllm-0.33/csrc-e5m2/fp8_per_tensor"
    first = named(dump_of("fp8_per_tensor", key, normal(2), pages, recipe=recipe, k_scale=1.0, v_scale=1.0))
    assert first.faults == ("wrong-format",)
    assert first.first.variants[0].startswith("e4m3fn")


def test_v_scales_are_swizzled_for_another_reader():
    """vllm-project/vllm#50084: with scales 1, 2, 3, 4 in every token a linear reader sees [1, 1, 1, 1], [2, ...]."""
    value = np.ones((4, 1, 64), F32) * 6 * np.repeat(np.arange(1, 5), 16).astype(F32)
    key = normal(1, tokens=4)[:, :1]
    slots = np.arange(4)
    sides = [write("nvfp4", x, given=F32(1)) for x in (key, value)]
    pages = spread("nvfp4", sides, slots=slots, blocks=1, block=4, v_scales="swizzled")
    linear = pages[0, -16:].view(E4M3).astype(F32).reshape(4, 4)  # the last section of the page, read row by row
    assert linear.tolist() == [[1.0] * 4, [2.0] * 4, [3.0] * 4, [4.0] * 4]
    dump = dump_of(
        "nvfp4", key, value, pages, slots=slots, block=4, v_scales="linear", k_scale=1.0, v_scale=1.0
    )  # fmt: skip
    first = named(dump)
    assert (first.faults, first.first.sides) == (("swizzle",), ("v",))


@pytest.mark.parametrize("padding", [8, 40])
def test_scales_lie_where_a_page_without_padding_would_have_them(padding):
    """vllm-project/vllm#49716: the stride of the scale views is made of the shape; padded pages have another one."""
    mode, cell = "int8_per_token_head", 2 * (DIMS + 4)

    def shape_derived(page, slot, head, side, byte):
        return page * BLOCK * HEADS * cell + (slot * HEADS + head) * cell + side * (DIMS + 4) + DIMS + byte

    key, value = normal(1), normal(2)
    pages = spread(mode, [write(mode, key), write(mode, value)], padding=padding, scale_byte=shape_derived)
    first = named(dump_of(mode, key, value, pages))
    assert (first.faults, first.first.variants) == (("stride",), ("scales as if pages had no padding",))


def test_pages_of_an_unquantized_cache_under_the_same_key():
    """LMCache/LMCache#1856: two caches of different dtype share a key, and a hit brings the wrong one's bytes."""
    key, value = normal(1), normal(2)
    cells = np.concatenate([x.astype(BF16).view(np.uint8).reshape(TOKENS, HEADS, -1) for x in (key, value)], axis=2)
    blocks, length = 7, BLOCK * HEADS * 2 * DIMS
    pages = np.zeros((blocks, 2 * length), np.uint8)  # of the bfloat16 cache: twice as long
    for token, slot in enumerate(SLOTS):
        if slot >= 0:
            page, position = divmod(int(slot), BLOCK)
            pages[page, position * 4 * HEADS * DIMS :][: 4 * HEADS * DIMS] = cells[token].reshape(-1)
    cut = np.ascontiguousarray(pages[:, :length])
    first = named(dump_of("fp8_per_tensor", key, value, cut, k_scale=1.0, v_scale=1.0))
    assert (first.faults, first.first.variants) == (("wrong-format",), ("bfloat16 bits, not quantized",))


def test_the_dtypes_of_these_reports_are_those_of_ml_dtypes():
    assert (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2) == (BF16, E4M3, E5M2)
