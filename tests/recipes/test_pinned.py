"""Golden recipes by hand: the pages in spec/recipes and the smallest inputs of public bug reports."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf

INF, NAN = np.inf, np.nan
TINY = 2.0**-149  # the smallest float32


def _row(*values, dims=16):
    row = np.zeros((1, 1, dims), np.float32)
    row[0, 0, : len(values)] = values
    return row


def _codes(q, count):
    return q.codes.reshape(-1)[:count].tolist()


def _bits(value):
    return int(np.array(value, np.float32).view(np.uint32).reshape(()))


def test_int8_rounds_to_nearest_even_and_does_not_truncate():  # A2
    q = kvf.quantize(_row(127, 0.6, -0.6, 1.5, -1.5, 2.5, dims=6), "int8_per_token_head")
    assert q.scales.tolist() == [[1.0]]
    assert _codes(q, 6) == [127, 1, -1, 2, -2, 2]


def test_int8_rounds_alike_in_every_row():  # A10: floor(x + 0.5) would give [-1, 3]
    q = kvf.quantize(np.tile(_row(127, -1.5, 2.5, dims=3), (4, 2, 1)), "int8_per_token_head")
    assert (q.codes == np.array([127, -2, 2], np.int8)).all()


def test_int8_is_symmetric_and_never_minus_128():
    q = kvf.quantize(_row(-127.0, 127.0, -INF, INF, dims=4), "int8_per_token_head")
    assert _codes(q, 4) == [-127, 127, -127, 127]


def test_int8_scale_of_bug_report_d6():
    q = kvf.quantize(_row(0.635, dims=1), "int8_per_token_head")
    assert _bits(q.scales) == 0x3BA3D70A  # 0.005
    assert _codes(q, 1) == [127]
    assert q.dequantize().item() == np.float32(0.635)


def test_fp8_divides_and_does_not_multiply_by_a_reciprocal():  # A7, the per-token-head analogue
    amax, x = np.array([0x3EC63DDB, 0x3B310060], np.uint32).view(np.float32)
    q = kvf.quantize(_row(amax, x), "fp8_per_token_head")
    assert _bits(q.scales) == 0x3A628FD6
    assert _codes(q, 2) == [0x7E, 0x45]  # the reciprocal gives 0x44


def test_nvfp4_divides_and_does_not_multiply_by_a_reciprocal():  # A7
    x = np.float32(0.02392577938735485)
    q = kvf.quantize(_row(6 * 0.013671875, x), "nvfp4", scale=1.0)
    assert q.scales.tolist() == [[[0x07]]]
    assert _codes(q, 2) == [7, 3]  # the reciprocal gives 4


def test_nvfp4_codes_are_made_with_the_stored_scale():  # A14
    q = kvf.quantize(_row(6.4, 2.7), "nvfp4", scale=1.0)
    assert q.scales.tolist() == [[[0x39]]]  # 1.125; exact would be 1.0667
    assert _codes(q, 3) == [7, 4, 0]
    assert q.dequantize()[0, 0, :2].tolist() == [6.75, 2.25]


def test_nvfp4_ties_of_e2m1fn_go_to_the_even_code():  # A6
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    q = kvf.quantize(_row(6, *ties, *(-tie for tie in ties)), "nvfp4", scale=1.0)
    assert q.scales.tolist() == [[[0x38]]]
    assert _codes(q, 15) == [7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 10, 12, 12, 14, 14]


@pytest.mark.parametrize(
    "amax, scale, codes",
    [
        (0.005, 0x00, [0, 8]),
        (6 * 2.0**-10, 0x00, [0, 8]),  # a tie, to the even code
        (0.00586, 0x01, [5, 0xD]),  # 0.00586 / 2^-9 = 3.0003
    ],
)
def test_nvfp4_block_scale_underflows_at_the_tie(amax, scale, codes):  # C4
    q = kvf.quantize(_row(amax, -amax), "nvfp4", scale=1.0)
    assert q.scales.tolist() == [[[scale]]]
    assert _codes(q, 2) == codes


def test_nvfp4_zero_block_beside_another_one_stays_finite():  # C1, C2
    x = _row(5.0, dims=32)
    q = kvf.quantize(x, "nvfp4")
    assert q.scales.tolist() == [[[0x7E, 0x00]]]
    assert q.dequantize()[0, 0, 16:].tolist() == [0.0] * 16


def test_nvfp4_tensor_scale_lets_tiny_tensors_live():  # C5
    q = kvf.quantize(_row(1e-5, -0.5e-5), "nvfp4")
    assert q.scales.tolist() == [[[0x7E]]]
    assert _codes(q, 2) == [7, 0xD]


def test_given_scale_saturates():  # B2
    for mode, largest in (("fp8_per_tensor", 0x7E), ("nvfp4", 7)):
        assert _codes(kvf.quantize(_row(1e6, -1e6), mode, scale=0.01), 2) == [
            largest,
            largest | 0x80 >> 4 * (mode == "nvfp4"),
        ]


@pytest.mark.parametrize("mode", ["fp8_per_tensor", "fp8_per_token_head"])
def test_fp8_row_of_every_special_value(mode):
    q = kvf.quantize(_row(448, -448, INF, -INF, NAN, -NAN, 0.0, -0.0, 2**-10, -(2**-10)), mode)
    assert q.scales.reshape(-1).tolist() == [1.0]
    assert _codes(q, 10) == [0x7E, 0xFE, 0x7E, 0xFE, 0x7F, 0x7F, 0x00, 0x80, 0x00, 0x80]


@pytest.mark.parametrize("mode", ["fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_zero_row_has_scale_one_and_keeps_its_signs(mode, dtype):
    q = kvf.quantize(_row(0.0, -0.0).astype(dtype), mode)
    assert q.scales.reshape(-1).tolist() == [1.0]
    assert _codes(q, 2) == ([0, 0] if mode.startswith("int8") else [0x00, 0x80])


def test_all_zero_tensor_of_nvfp4_has_global_scale_one_and_keeps_its_signs():
    q = kvf.quantize(_row(0.0, -0.0), "nvfp4")
    assert (float(q.global_scale), q.scales.tolist(), _codes(q, 3)) == (1.0, [[[0x00]]], [0, 8, 0])


@pytest.mark.parametrize(
    "mode, steps, scale, codes",
    [
        ("fp8_per_token_head", 224, 1.0, [0x00, 0x80]),  # 224 / 448 = half of the smallest float32: a tie with 0
        ("fp8_per_token_head", 225, TINY, [0x76, 0xF6]),  # 225 rounds to 224
        ("fp8_per_tensor", 224, 1.0, [0x00, 0x80]),
        ("fp8_per_tensor", 225, TINY, [0x76, 0xF6]),
        ("int8_per_token_head", 63, 1.0, [0, 0]),
        ("int8_per_token_head", 64, TINY, [64, -64]),
    ],
)
def test_scale_that_underflows_is_one(mode, steps, scale, codes):
    q = kvf.quantize(_row(steps * TINY, -steps * TINY), mode)
    assert q.scales.reshape(-1).tolist() == [scale]
    assert _codes(q, 2) == codes


@pytest.mark.parametrize(
    "steps, g, bs, codes",
    [
        (1344, 1.0, 0x00, [0, 8]),  # 1344 / 2688: a tie with 0
        (1345, TINY, 0x76, [7, 0xF]),  # 1345 / 6 rounds to 224
    ],
)
def test_global_scale_that_underflows_is_one(steps, g, bs, codes):
    q = kvf.quantize(_row(steps * TINY, -steps * TINY), "nvfp4")
    assert (float(q.global_scale), q.scales.tolist(), _codes(q, 2)) == (g, [[[bs]]], codes)


def test_subnormal_scale_is_not_flushed():
    q = kvf.quantize(_row(448 * TINY, -TINY, 1.0), "fp8_per_tensor", scale=TINY)
    assert _codes(q, 3) == [0x7E, 0xB8, 0x7E]  # 1 / 2^-149 overflows to Inf and saturates


def test_nvfp4_block_whose_product_of_scales_underflows_is_all_zeros():
    # bs = e4m3fn(1/6) = 0.171875 is not 0, but bs * g is
    q = kvf.quantize(_row(TINY, -TINY, INF, -INF), "nvfp4", scale=TINY)
    assert q.scales.tolist() == [[[0x23]]]
    assert _codes(q, 4) == [0, 8, 0, 8]
    # as real numbers it is not: 2^-149 / (0.171875 * 2^-149) = 5.8
    exact = kvf.quantize(_row(TINY, -TINY, INF, -INF), "exact/nvfp4", scale=TINY)
    assert exact.scales.tolist() == [[[0x23]]]
    assert _codes(exact, 4) == [7, 0xF, 7, 0xF]


def test_six_g_overflows_above_its_limit():
    limit = np.float32(float.fromhex("0x1.555554p+125"))  # 5.67e37, the largest g whose 6 * g is finite
    above = np.nextafter(limit, np.float32(INF))
    x = _row(3e38, -3e38, 0.0, -0.0)
    assert kvf.quantize(x, "nvfp4", scale=limit).scales.tolist() == [[[0x36]]]  # 0.88 rounds to 0.875
    q = kvf.quantize(x, "nvfp4", scale=above)
    assert q.scales.tolist() == [[[0x00]]]
    assert _codes(q, 4) == [0, 8, 0, 8]
    exact = kvf.quantize(x, "exact/nvfp4", scale=above)  # a real number does not overflow
    assert exact.scales.tolist() == [[[0x36]]]
    assert _codes(exact, 4) == [7, 0xF, 0, 8]


def test_nan_spoils_its_int8_row_and_no_other():
    x = np.tile(_row(127, -INF, 5, dims=4), (3, 2, 1))
    x[1, 0, 3] = NAN
    q = kvf.quantize(x, "int8_per_token_head")
    assert _bits(q.scales[1, 0]) == 0x7FC00000
    assert q.codes[1, 0].tolist() == [0, 0, 0, 0]
    others = np.ones((3, 2), bool)
    others[1, 0] = False
    assert (q.scales[others] == 1).all()
    assert (q.codes[others] == np.array([127, -127, 5, 0])).all()
    assert np.isnan(q.dequantize()[1, 0]).all()
    assert not np.isnan(q.dequantize()[others]).any()


def test_negative_nan_with_a_payload_spoils_an_int8_row_with_the_canonical_nan():
    x = _row(1.0)
    x.view(np.uint32)[0, 0, 5] = 0xFFABCDEF
    assert _bits(kvf.quantize(x, "int8_per_token_head").scales) == 0x7FC00000


def test_nan_spoils_its_nvfp4_block_and_no_other():
    x = _row(6, -3, dims=48)
    x[0, 0, 16:19] = 6, NAN, -INF
    x[0, 0, 32] = 448 * 6
    q = kvf.quantize(x, "nvfp4")
    assert float(q.global_scale) == 1.0
    assert q.scales.tolist() == [[[0x38, 0x7F, 0x7E]]]
    assert q.codes[0, 0, 16:32].tolist() == [0] * 16
    assert q.codes[0, 0, :2].tolist() == [7, 0xD]
    assert q.codes[0, 0, 32] == 7
    assert np.isnan(q.dequantize()[0, 0]).tolist() == [False] * 16 + [True] * 16 + [False] * 16


def test_nan_spoils_one_fp8_element_and_no_other():
    q = kvf.quantize(_row(448, NAN, -1), "fp8_per_token_head")
    assert _codes(q, 4) == [0x7E, 0x7F, 0xB8, 0x00]
    assert np.isnan(q.dequantize()).sum() == 1


@pytest.mark.parametrize(
    "mode, codes",
    [
        ("fp8_per_tensor", [0x7E, 0xFE]),
        ("fp8_per_token_head", [0x7E, 0xFE]),
        ("int8_per_token_head", [127, -127]),
        ("nvfp4", [0, 8]),  # the block scale is 0, so even Inf is a signed zero
    ],
)
def test_infinity_has_no_part_in_amax(mode, codes):
    q = kvf.quantize(_row(INF, -INF), mode)
    assert q.scales.reshape(-1).tolist() == [0.0 if mode == "nvfp4" else 1.0]
    assert float(q.global_scale) == 1.0
    assert _codes(q, 2) == codes


def test_infinity_takes_the_largest_e2m1fn_code_where_the_block_has_a_scale():
    q = kvf.quantize(_row(INF, -INF, 3.0), "nvfp4", scale=1.0)
    assert q.scales.tolist() == [[[0x30]]]  # 0.5
    assert _codes(q, 3) == [7, 0xF, 7]


def test_amax_is_over_the_tensor_for_fp8_and_over_the_row_per_token_head():
    x = np.zeros((2, 2, 4), np.float32)
    x[0, 0, 0], x[0, 1, 1], x[1, 0, 2], x[1, 1, 3] = 448, -896, 2 * 896, 4 * 896
    assert kvf.quantize(x, "fp8_per_tensor").scales.tolist() == [8.0]
    assert kvf.quantize(x, "fp8_per_token_head").scales.tolist() == [[1.0, 2.0], [4.0, 8.0]]


def test_int8_rounds_the_quotient_before_it_clamps():
    # amax / 127 rounds down here, so that the largest quotient is above 127: it must not become 128 or wrap
    x = _row(*(np.arange(1, 129) * TINY), dims=128)
    q = kvf.quantize(x, "int8_per_token_head")
    assert q.scales.tolist() == [[TINY]]
    assert _codes(q, 128) == [*range(1, 128), 127]
