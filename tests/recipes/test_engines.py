"""What engines outside GPU servers store, byte for byte: vectors seen by running them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from tests.recipes import engines
from tests.recipes.parameters import same

pytestmark = pytest.mark.slow  # a kernel for each recipe

INF, NAN = float("inf"), float("nan")


def _row(values, dims=32):
    x = np.zeros((1, 1, dims), np.float32)
    x[0, 0, : len(values)] = values
    return x


def _halves(codes):
    """Element j in the low nibble, element j + 16 in the high one, as ggml's blocks have them."""
    return codes[:16] & 0xF | (codes[16:] & 0xF) << 4


def _block(q):
    """ggml's struct of one block of 32: parameters as float16, the fifth bits, the nibbles or bytes."""
    codes = q.codes.reshape(-1).view(np.uint8)
    params = [q.params[name] for name in ("d", "m") if name in q.params]
    head = b"".join(each.astype("<f2").tobytes() for each in params)
    bits = kvf.element(q.recipe.element).bits
    if bits == 8:
        return head + codes.tobytes()
    high = np.packbits(codes >> 4 & 1, bitorder="little").tobytes() if bits == 5 else b""
    return head + high + _halves(codes).tobytes()


TIES = [127, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5]
SPECIAL = [1, -2, 6]


@pytest.mark.parametrize("recipe, values, wanted", [
    (engines.Q8_0, TIES, "003c 7f01ff02fe03fd7f"),
    (engines.Q8_0_AVX, TIES, "003c 7f000002fe02fe7e"),
    (engines.Q8_0_NEON, TIES, "003c 7f000002fe02fe7e"),
    (engines.Q8_0_WASM, TIES, "003c 7f000001ff02fe7e"),
    (engines.Q8_0, [1e-9, -5e-10], "0000 7fc0"),
    (engines.Q8_0_WASM, [1e-9, -5e-10], "0000 7fc1"),
    (engines.Q8_0, [1e-40, -1e-40], "0000" + "00" * 32),
    (engines.Q8_0_AVX, [1e-40, -1e-40], "0000" + "80" * 32),
    (engines.Q8_0, [NAN, *SPECIAL], "0c2a 0015d67f"),
    (engines.Q8_0_AVX, [NAN, *SPECIAL], "0c2a 8015d67f"),
    (engines.Q8_0_NEON, [NAN, *SPECIAL], "007e 00000000"),
    (engines.Q8_0, [INF, *SPECIAL], "007c 00000000"),
    (engines.Q8_0_AVX, [INF, *SPECIAL], "007c 80000000"),
    (engines.Q8_0, [8_321_040], "007c"),
    (engines.Q4_0, [-8, .5, -.5, 1.5, -1.5, 2.5, -2.5, 7.5, 8], "003c 8089888a878b868f8f 88"),
    (engines.Q4_0, [8, .5, -.5, 1.5, -1.5, 2.5, -2.5, 7.5, -8], "00bc 808889878a868b818f 88"),
    (engines.Q4_0, [8, -8], "00bc 808f88"),
    (engines.Q4_1, [1] * 32, "0000 003c" + "00" * 16),
    (engines.Q4_1, [0, .5, 1.5, 2.5, 14.5, 15], "003c 0000 00 01 02 03 0f 0f"),
    (engines.Q5_0, [-16, .5, -.5, 1.5, -1.5, 15.5, 16], "003c eeffffff 000100020f0f0f 00"),
    (engines.Q5_1, [0, .5, 1.5, 2.5, 30.5, 31], "003c 0000 30000000 000102030f0f"),
    (engines.Q4_1, np.linspace(100.01, 100.2, 32), "7c22 4056"),
    (engines.Q5_1, np.linspace(1000.1, 1000.9, 32), "9b26 d063"),
    (engines.IQ4_NL, [-127, 113, 0, -115.5, 7, 1, 13], "1d3c 808f8881898889 88"),
])  # fmt: skip
def test_ggml_s_blocks(recipe, values, wanted):
    q = kvf.quantize(_row(values), recipe)
    wanted = bytes.fromhex(wanted.replace(" ", ""))
    assert _block(q)[: len(wanted)].hex() == wanted.hex()


@pytest.mark.parametrize("top, tiny", [(0.0, True), (9.9e-16, True), (1.1e-15, False), (1.0, False)])
def test_ggml_leaves_the_codes_of_a_tiny_iq4_nl_block_as_they_were(top, tiny):
    q = kvf.quantize(_row([0, top]), engines.IQ4_NL)
    assert q.undefined.tolist() == [[[tiny]]]
    assert not tiny or q.params["d"].view(np.uint16).tolist() == [[[0]]]


@pytest.mark.parametrize("values, codes, scale, bias", [
    ([7.5, -7.5, .5, 1.5, 2.5, -.5, -1.5, 3], "f067955a" + "88" * 12, -0.9375, 7.5),
    ([15, 0, .5, 1.5, 2.5, 3.5, 4.5, 14.5], "f0eecc0a" + "ff" * 12, -1, 15),
    (-np.linspace(1, 2, 32), "ffeedd", np.float32(2) / np.float32(30), -2),
    ([0] * 32, "00" * 16, np.float32(-1e-7), 0),
    ([1] * 32, "00" * 16, np.float32(-1e-7), 1),
])  # fmt: skip
def test_mlx_affine_on_a_cpu(values, codes, scale, bias):
    q = kvf.quantize(_row(values), engines.mlx(4, 32))
    packed = kvf.pack_nibbles(q.codes).reshape(-1)
    assert packed.tobytes().hex().startswith(codes)
    assert q.params["s"].item() == np.float32(scale)
    assert q.params["b"].item() == bias


def test_mlx_on_a_gpu_starts_from_0_so_that_a_group_of_negatives_has_another_scale():
    q = kvf.quantize(_row(-np.linspace(1, 2, 32)), engines.mlx(4, 32, "zero", "half_away"))
    assert q.params["s"].item() == np.float32(2) / np.float32(15)
    assert q.params["b"].item() == -2


@pytest.mark.parametrize("values, scale, zero, codes", [
    ([0, 255, .5, 1.5, 2.5, 254.5], "1", "-0", "00ff000202fe"),
    ([-127.5, 127.5, 0, .5, -.5, 1], "1", "127.5", "00ff80807f80"),
    ([0], "0.0001", "-0", "000000"),
    ([3] * 32, "0.0001", "-30000", "000000"),
    ([NAN, 1, -2, 6], "0.031373", "63.75", "006000ff"),
])  # fmt: skip
def test_openvino_u8_by_token(values, scale, zero, codes):
    q = kvf.quantize(_row(values), engines.openvino("per_token_head", 8))
    assert q.codes.tobytes().hex().startswith(codes)
    # parameters were seen in print, cut to six digits: five are sure
    assert [f"{q.params[name].item():.5g}" for name in ("s", "zp")] == [scale, zero]


def test_openvino_u4_has_the_even_element_in_the_high_nibble():
    q = kvf.quantize(_row([0, 255, 0.5, 1.5, 2.5, 254.5]), engines.openvino("per_token_head", 4))
    assert q.params["s"].item() == 17
    codes = q.codes.reshape(-1)
    assert (codes[0::2] << 4 | codes[1::2]).tobytes().hex().startswith("0f000f")


def test_openvino_by_channel_of_one_token_has_code_0_and_all_in_the_zero_point():
    x = np.float32([[[1.5, -2.25, 0, 3]]])
    q = kvf.quantize(x, engines.openvino("(32, 1, 1)", 8))
    assert (q.codes == 0).all()
    assert (q.params["s"] == np.float32(1e-4)).all()
    assert (q.params["zp"] == -x / np.float32(1e-4)).all()


@pytest.mark.parametrize("recipe, codes", [
    (engines.EXECUTORCH_EAGER, "7f800000fe02"), (engines.EXECUTORCH_KERNEL, "7f80ff01ff01"),
])  # fmt: skip
def test_executorch(recipe, codes):
    q = kvf.quantize(_row([128, -127, 0.5, 1.5, -0.5, 2.5]), recipe)
    assert q.codes.tobytes().hex().startswith(codes)
    assert (q.params["zp"].item(), q.params["zp"].dtype) == (-1, np.int8)
    zeros = kvf.quantize(_row([0]), recipe)
    assert (zeros.codes == 0x7F).all()
    assert (zeros.params["zp"].item(), zeros.params["s"].item()) == (127, 2.0**-23)


ORT = [0.5, -0.5, 1.5, -1.5, 2.5, 127.4, 127.5, 200, -128.5, -300, NAN, INF, -INF]


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_onnxruntime(granularity):
    one = {"s": np.float32(1)}
    q = kvf.quantize(_row(ORT), engines.onnxruntime(granularity, 8), params=one)
    assert q.codes.tobytes().hex().startswith("000002fe027f7f7f80807f7f80")
    q = kvf.quantize(_row(ORT), engines.onnxruntime(granularity, 4), params=one)
    assert kvf.pack_nibbles(q.codes).tobytes().hex().startswith("886afaff00ff80")


def test_onnxruntime_multiplies_by_the_rounded_reciprocal():
    x = ((np.arange(8000) + 0.5) % 127 * 0.03).astype(np.float32).reshape(1, 1, -1)
    q = kvf.quantize(x, engines.onnxruntime("per_tensor", 8), scale=0.03)
    assert (q.codes == np.rint(x * (np.float32(1) / np.float32(0.03)))).all()
    assert (q.codes != np.rint(x / np.float32(0.03))).any()


def test_quanto_takes_rows_of_64_of_the_flattened_order():
    first = [7.5, -7.5, 0.5, -0.5, 1.5, -1.5, 2.5, 6.5]
    x = np.zeros((2, 1, 64), np.float32)
    x[0, 0, :8], x[1, 0, :8] = first, 2 * np.float32(first)
    q = kvf.quantize(x, engines.quanto(4))
    assert q.params["s"].tolist() == [1, 2]
    assert q.params["shift"].tolist() == [7.5, 15]
    assert (q.codes[0, 0] | q.codes[1, 0] << 4)[:8].tobytes().hex() == "ff0088779966aaee"


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_quanto_and_kivi_round_each_operation_to_the_dtype_of_the_model(dtype):
    x = np.random.default_rng(2).standard_normal((32, 2, 64)).astype(dtype)
    rows = x.transpose(1, 0, 2).reshape(-1, 64)
    low, high, most = rows.min(axis=1, keepdims=True), rows.max(axis=1, keepdims=True), dtype(15)
    scale, shift = (high - low) / most, -low
    codes = np.clip(np.rint(((rows + shift) / scale).astype(np.float32)), 0, 15)
    q = kvf.quantize(x, engines.quanto(4))
    assert (q.params["s"] == scale[:, 0]).all()
    assert (q.codes.transpose(1, 0, 2).reshape(-1, 64) == codes).all()
    low, high = x.min(axis=0, keepdims=True), x.max(axis=0, keepdims=True)
    scale = (high - low) / dtype(3)
    codes = np.rint(np.clip(((x - low) / scale).astype(np.float32), 0, 3))
    q = kvf.quantize(x, engines.kivi("(32, 1, 1)", 2))
    assert (q.params["s"] == scale).all()
    assert (q.params["low"] == low).all()
    assert (q.codes == codes).all()
    assert (q.dequantize(dtype) == (codes.astype(dtype) * scale + low)).all()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [
    engines.Q8_0, engines.Q8_0_AVX, engines.Q4_0, engines.Q5_1, engines.IQ4_NL, engines.mlx(4, 32), engines.mlx(5, 32),
    engines.openvino("per_token_head", 8), engines.openvino("(32, 1, 1)", 4), engines.EXECUTORCH_EAGER,
    engines.EXECUTORCH_KERNEL, engines.onnxruntime("per_channel", 4), engines.quanto(4), engines.kivi("(32, 1, 1)", 2),
], ids=lambda recipe: recipe.name)  # fmt: skip
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_each_runs_as_its_twin_does(recipe, dtype):
    x = np.random.default_rng(4).standard_normal((6, 2, 64)) * 2.0 ** np.arange(-3, 3)[:, None, None]
    x[0, 0, :4] = [NAN, INF, -0.0, 1e-40]
    with np.errstate(all="ignore"):
        same(x.astype(dtype), recipe)
