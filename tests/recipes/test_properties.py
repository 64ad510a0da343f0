"""What must hold for every K and V: isolation, permutation, scaling, negation, widening, strides, threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import kvformat as kvf
from kvformat.elements import threads
from kvformat.fuzz import strategies
from tests.elements.compare import assert_same_codes, assert_same_values
from tests.recipes import reference

few = settings(max_examples=40)
MODELS = strategies.PROFILE_NAMES

PER_TOKEN_HEAD = ("fp8_per_token_head", "int8_per_token_head")
MODES = ("fp8_per_tensor", *PER_TOKEN_HEAD, "nvfp4")
#: in these a row's scales depend on nothing outside the row, once nvfp4's g is given
ISOLATED = (("fp8_per_token_head", None), ("int8_per_token_head", None), ("nvfp4", 0.01), ("fp8_per_tensor", 0.01))


def assert_same(found, expected):
    """Two Quantized are the same, bit for bit; a NaN scale as a class."""
    assert_same_codes(found.codes, expected.codes)
    (assert_same_codes if found.scales.dtype == np.uint8 else assert_same_values)(found.scales, expected.scales)
    assert found.global_scale == expected.global_scale


def _rows(q, mode):
    """The scales that belong to rows: none in fp8_per_tensor."""
    return q.scales[:0] if mode == "fp8_per_tensor" else q.scales


@pytest.mark.parametrize("mode, scale", ISOLATED)
@few
@given(data=st.data())
def test_another_token_changes_no_byte_of_the_others(mode, scale, data):
    x = data.draw(strategies.kv_tensors(mode, tokens=(1, 4)), "x")
    token, changed = data.draw(strategies.outlier_tokens(x), "token, changed")
    before, after = kvf.quantize(x, mode, scale=scale), kvf.quantize(changed, mode, scale=scale)
    others = np.arange(len(x)) != token
    assert_same_codes(after.codes[others], before.codes[others])
    if mode != "fp8_per_tensor":
        kept = after.scales[others], before.scales[others]
        (assert_same_codes if mode == "nvfp4" else assert_same_values)(*kept)


@few
@given(x=strategies.kv_tensors(tokens=(1, 4), profile=MODELS), data=st.data())
def test_an_outlier_token_changes_the_others_in_fp8_per_tensor(x, data):
    # 2^8 larger than all the rest: the scale grows 2^8-fold, and every code but zeros with it
    assume(len(x) > 1)
    token = data.draw(st.integers(0, len(x) - 1))
    wide = x.astype(np.float32)
    changed = wide.copy()
    changed[token] = np.float32(256) * np.abs(wide).max()
    before, after = kvf.quantize(wide, "fp8_per_tensor"), kvf.quantize(changed, "fp8_per_tensor")
    assert (after.scales == 256 * before.scales).all()
    others = np.arange(len(x)) != token
    assert (after.codes[others] != before.codes[others]).any()


def test_an_outlier_token_moves_the_codes_of_fp8_per_tensor_by_hand():
    x = np.array([[[448.0, 1.0]], [[3.0, -2.0]]], np.float32)
    assert kvf.quantize(x, "fp8_per_tensor").codes.tolist() == [[[0x7E, 0x38]], [[0x44, 0xC0]]]
    x[0, 0, 0] = 448 * 4
    assert kvf.quantize(x, "fp8_per_tensor").codes.tolist() == [[[0x7E, 0x28]], [[0x34, 0xB0]]]


@few
@given(data=st.data())
def test_a_block_of_nvfp4_depends_on_nothing_but_itself_and_g(data):
    x = data.draw(strategies.kv_tensors("nvfp4", tokens=(1, 2), head_dim=(32, 48)), "x")
    g = data.draw(strategies.scales(), "g")
    whole = kvf.quantize(x, "nvfp4", scale=g)
    for block in range(x.shape[2] // 16):
        dims = slice(16 * block, 16 * block + 16)
        alone = kvf.quantize(x[:, :, dims].copy(), "nvfp4", scale=g)
        assert_same_codes(alone.codes, whole.codes[:, :, dims])
        assert_same_codes(alone.scales[:, :, 0], whole.scales[:, :, block])


@pytest.mark.parametrize("mode", MODES)
@few
@given(data=st.data())
def test_permuting_tokens_and_heads_permutes_codes_and_scales(mode, data):
    x = data.draw(strategies.kv_tensors(mode, tokens=(1, 4), heads=(1, 3)), "x")
    tokens = data.draw(st.permutations(range(x.shape[0])), "tokens")
    heads = data.draw(st.permutations(range(x.shape[1])), "heads")
    q, permuted = kvf.quantize(x, mode), kvf.quantize(np.ascontiguousarray(x[tokens][:, heads]), mode)
    assert_same_codes(permuted.codes, q.codes[tokens][:, heads])
    assert permuted.global_scale == q.global_scale
    if mode == "fp8_per_tensor":
        assert_same_values(permuted.scales, q.scales)
    else:
        compare = assert_same_codes if mode == "nvfp4" else assert_same_values
        compare(permuted.scales, q.scales[tokens][:, heads])


@pytest.mark.parametrize("mode", MODES)
@few
@given(x=strategies.kv_tensors(dtype=strategies.FLOAT32, profile=MODELS), exponent=st.integers(-60, 60))
@example(x=np.full((1, 1, 16), 464, np.float32), exponent=-3)
def test_a_power_of_two_scales_the_scale_and_leaves_the_codes(mode, x, exponent):
    factor = np.float32(2.0**exponent)
    q, scaled = kvf.quantize(x, mode), kvf.quantize(x * factor, mode)
    assert_same_codes(scaled.codes, q.codes)
    if mode == "nvfp4":
        assert_same_codes(scaled.scales, q.scales)
        assert scaled.global_scale == q.global_scale * factor
    else:
        assert_same_values(scaled.scales, q.scales * factor)


@pytest.mark.parametrize("mode", MODES)
@few
@given(data=st.data())
def test_negation_flips_the_signs_of_codes_and_leaves_the_scales(mode, data):
    x = data.draw(strategies.kv_tensors(mode), "x")
    q, negated = kvf.quantize(x, mode), kvf.quantize(-x, mode)
    assert_same_values(negated.scales, q.scales) if mode != "nvfp4" else assert_same_codes(negated.scales, q.scales)
    if mode == "int8_per_token_head":
        expected = -q.codes
        assert q.codes.min() >= -127
    elif mode == "nvfp4":
        spoiled = np.repeat(q.scales == 0x7F, 16, axis=2)  # all codes are +0 there, whatever the sign
        expected = np.where(spoiled, q.codes, q.codes ^ 8)
    else:
        expected = np.where(q.codes == 0x7F, q.codes, q.codes ^ 0x80)  # a NaN has no sign
    assert_same_codes(negated.codes, expected)


@pytest.mark.parametrize("mode", MODES)
@few
@given(data=st.data())
def test_half_precision_input_is_its_float32_widening(mode, data):
    x = data.draw(strategies.kv_tensors(mode, dtype=data.draw(st.sampled_from(strategies.DTYPES[1:]))), "x")
    assert_same(kvf.quantize(x, mode), kvf.quantize(x.astype(np.float32), mode))


@pytest.mark.parametrize("dtype", strategies.DTYPES[1:], ids=strategies.DTYPE_IDS[1:])
@pytest.mark.parametrize("mode", MODES)
def test_all_65536_half_precision_patterns_quantize_as_their_widening(mode, dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(64, 8, 128)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = x.astype(np.float32)
    assert_same(kvf.quantize(x, mode), kvf.quantize(wide, mode))
    # and with one pattern in a row of ordinary numbers, so that amax does not drown it
    rows = np.ones((1 << 16, 1, 16), dtype)
    rows[:, 0, 7] = x.reshape(-1)
    with np.errstate(invalid="ignore"):
        wide = rows.astype(np.float32)
    assert_same(kvf.quantize(rows, mode), kvf.quantize(wide, mode))


@pytest.mark.parametrize("mode, scale", [*((mode, None) for mode in MODES), ("nvfp4", 0.25), ("fp8_per_tensor", 0.25)])
def test_bytes_do_not_depend_on_the_number_of_threads(monkeypatch, mode, scale):
    rng = np.random.default_rng(17)
    tokens = threads.SERIAL // 256 + 37
    x = rng.standard_normal((tokens, 4, 64)).astype(np.float32)
    x[rng.integers(tokens, size=30), 1, rng.integers(64, size=30)] = np.nan
    assert x.size > threads.SERIAL
    expected = reference.quantize(x, mode, scale)
    for count in (1, 2, 3, 5):
        monkeypatch.setenv("KVFORMAT_NUM_THREADS", str(count))
        q = kvf.quantize(x, mode, scale=scale)
        assert_same_codes(q.codes, expected.codes)
        (assert_same_codes if mode == "nvfp4" else assert_same_values)(q.scales, expected.scales)
        assert_same_values(q.dequantize(), reference.dequantize(expected, mode))


def _strided(x):
    """The same numbers with other strides: transposed pools, every second token, half of a fused K|V, reversed dims."""
    tokens, heads, dims = x.shape
    yield np.ascontiguousarray(x.transpose(1, 0, 2)).transpose(1, 0, 2)
    yield np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0)
    yield np.repeat(x, 2, axis=0)[::2]
    fused = np.zeros((tokens, heads, 2 * dims), x.dtype)
    fused[..., :dims] = x
    yield fused[..., :dims]
    yield np.ascontiguousarray(x[:, :, ::-1])[:, :, ::-1]
    yield np.asfortranarray(x)


def test_bytes_do_not_depend_on_strides():
    mode = "fp8_per_token_head"  # a kernel for strided rows is another compilation: one recipe has to do
    x = np.random.default_rng(19).standard_normal((5, 3, 32)).astype(np.float32)
    expected = kvf.quantize(x, mode)
    for strided in _strided(x):
        np.testing.assert_array_equal(strided, x)
        assert_same(kvf.quantize(strided, mode), expected)


def test_one_row_may_stand_for_all_tokens():
    row = np.random.default_rng(23).standard_normal((1, 2, 32)).astype(np.float32)
    repeated = np.broadcast_to(row, (6, 2, 32))
    assert repeated.strides[0] == 0
    assert_same(kvf.quantize(repeated, "fp8_per_token_head"), kvf.quantize(repeated.copy(), "fp8_per_token_head"))


def test_read_only_input_is_left_alone():
    x = np.random.default_rng(29).standard_normal((2, 2, 32)).astype(np.float32)
    expected, before = kvf.quantize(x, "fp8_per_token_head"), x.tobytes()
    x.flags.writeable = False
    assert_same(kvf.quantize(x, "fp8_per_token_head"), expected)
    assert x.tobytes() == before


@pytest.mark.parametrize("dtype", [">f4", ">f2"])
@pytest.mark.parametrize("mode", ["none", *MODES])
def test_big_endian_input_is_read_right(mode, dtype):
    x = np.random.default_rng(31).standard_normal((2, 2, 32)).astype(np.dtype(dtype).newbyteorder("="))
    found, expected = kvf.quantize(x.astype(dtype), mode), kvf.quantize(x, mode)
    assert found.codes.dtype.isnative
    np.testing.assert_array_equal(found.codes, expected.codes)
    np.testing.assert_array_equal(found.scales, expected.scales)


@few
@given(x=strategies.kv_tensors(profile=MODELS), data=st.data())
def test_quantizing_twice_gives_the_same_bytes(x, data):
    mode = data.draw(st.sampled_from(MODES))
    assert_same(kvf.quantize(x, mode), kvf.quantize(x.copy(), mode))
