"""The recipes of torchao 0.18.0 against torchao 0.18.0, run on the CPU: byte for byte, 2 million values each."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines import torchao
from tests.engines.turning import DECODE, EXPONENTS, MX, RANDOM_UNITS
from tests.oracle.inputs import turning_points
from tests.oracle.libraries import (
    adversarial,
    array,
    assert_same,
    assert_told_apart,
    finite,
    head,
    stored,
    tensors,
)

DTYPES = ("float32", "bfloat16")


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Skips before any input is made."""
    torchao.module("prototype.mx_formats.mx_tensor")


@pytest.mark.parametrize("scale", DECODE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_with_a_global_scale_is_torchaos(dtype: str, scale: float) -> None:
    units = turning_points("e4m3fn") * np.float32(scale)
    x = adversarial("e2m1fn", dtype, width=16, units=units, tops=(6,))
    codes, scales = torchao.nvfp4(x, scale)
    assert_same(x, "torchao-0.18/nvfp4", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4_without_a_global_scale_is_torchaos(dtype: str) -> None:
    x = adversarial("e2m1fn", dtype, width=16, units=turning_points("e4m3fn"), tops=(6,))
    codes, scales = torchao.nvfp4(x, None)
    assert_same(x, "torchao-0.18/nvfp4_single_level", codes=codes, scales=scales)


# both dtypes are widened to float32 first: each rounding is run on each, and on each element format
@pytest.mark.parametrize(
    ("rounding", "mode", "dtype"),
    [
        ("floor", "mxfp4", "float32"),
        ("floor", "mxfp8", "float32"),
        ("floor", "mxfp8", "bfloat16"),
        ("ceil", "mxfp4", "float32"),
        ("ceil", "mxfp4", "bfloat16"),
        ("ceil", "mxfp8", "float32"),
        ("even", "mxfp4", "float32"),
        ("even", "mxfp8", "float32"),
        ("even", "mxfp8", "bfloat16"),
        ("rceil", "mxfp4", "float32"),
        ("rceil", "mxfp4", "bfloat16"),
        ("rceil", "mxfp8", "float32"),
    ],
)
def test_microscaling_is_torchaos(rounding: str, mode: str, dtype: str) -> None:
    element, tops = MX[mode]
    x = adversarial(element, dtype, width=32, units=EXPONENTS, tops=tops)
    codes, scales = torchao.mx(x, rounding, mode)
    assert_same(x, f"torchao-0.18/{rounding}/{mode}", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nvfp4s_own_global_scale_is_torchaos(dtype: str) -> None:
    for x in finite(tensors(dtype)):
        scale = torchao.own_scale(x)
        codes, scales = torchao.nvfp4(x, scale)
        assert_same(x, "torchao-0.18/nvfp4", codes=codes, scales=scales, global_scale=scale)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", torchao.FLOAT8)
def test_float8_per_row_is_torchaos(path: str, dtype: str) -> None:
    x = adversarial("e4m3fn", dtype, width=64, units=RANDOM_UNITS, tops=(448,))
    codes, scales = torchao.FLOAT8[path](x, "fp8_per_token_head")
    assert_same(x, f"torchao-0.18/{path}/fp8_per_token_head", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", torchao.FLOAT8)
def test_float8_per_tensor_with_its_own_scale_is_torchaos(path: str, dtype: str) -> None:
    for x in tensors(dtype):
        codes, scales = torchao.FLOAT8[path](x, "fp8_per_tensor")
        assert_same(x, f"torchao-0.18/{path}/fp8_per_tensor", codes=codes, scales=scales)


@pytest.mark.parametrize("scale", DECODE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_float8_per_tensor_with_a_given_scale_is_torchaos(dtype: str, scale: float) -> None:
    import torch

    t = torch.tensor(scale, dtype=torch.float32)
    x = adversarial("e4m3fn", dtype, width=64, units=np.array([1 / scale]), tops=(448, 464, 480))
    codes = torchao.training_codes(x, t)
    assert_same(x, "torchao-0.18/float8/fp8_per_tensor", codes=codes, scales=array(t), scale=scale)
    x = adversarial("e4m3fn", dtype, width=64, units=np.array([scale]), tops=(448, 464, 480))
    codes = torchao.affine_codes(x, t.reshape(1))
    assert_same(x, "torchao-0.18/affine/fp8_per_tensor", codes=codes, scales=array(t), scale=scale)


# What tells a recipe from its nearest neighbour: elements, then the scale byte and first codes that torchao stores.
@pytest.mark.parametrize(
    ("recipe", "neighbour", "elements", "scale_byte", "codes"),
    [
        # a block scale of 2^-10 is raised to 2^-6
        ("nvfp4_single_level", "vllm-0.33/csrc/nvfp4_ds_mla", [6 * 2.0**-10, 3 * 2.0**-10, -(2.0**-10)], "08", "108"),
        # 7 = 1.75 * 4: floor saturates, even and ceil do not
        ("floor/mxfp4", "torchao-0.18/even/mxfp4", [7.0, 6.5, -7.0, 1.0, 0.25], "7f", "77f20"),
        ("even/mxfp4", "torchao-0.18/floor/mxfp4", [7.0, 6.5, -7.0, 1.0, 0.25], "80", "65e10"),
        ("ceil/mxfp4", "torchao-0.18/rceil/mxfp4", [5.0, 1.0], "80", "41"),
        ("rceil/mxfp4", "torchao-0.18/even/mxfp4", [6.0000005, 3.0], "80", "53"),
        ("floor/mxfp8", "torchao-0.18/even/mxfp8", [496.0, 1.0], "7f", "7e 38"),
        ("even/mxfp8", "torchao-0.18/floor/mxfp8", [496.0, 1.0], "80", "78 30"),
        ("ceil/mxfp8", "torchao-0.18/rceil/mxfp8", [448.0, 1.0], "80", "76 30"),
        ("rceil/mxfp8", "torchao-0.18/even/mxfp8", [449.0, 1.0], "80", "76 30"),
        # 11 ulp above 6 * 2^40: log2 in binary32 does not see them, so the code saturates
        ("rceil/mxfp4", "torchao-0.18/ceil/mxfp4", [6 * 2.0**40 * (1 + 11 * 2.0**-23)], "a7", "7"),
        # a scale byte of 0 multiplies by 1 and divides by 2^-126
        ("rceil/mxfp4", "torchao-0.18/floor/mxfp4", [2.0**-126, -(2.0**-127)], "00", "08"),
        ("floor/mxfp4", "torchao-0.18/rceil/mxfp4", [2.0**-126, -(2.0**-127)], "00", "29"),
    ],
)
def test_one_input_tells_a_recipe_from_its_nearest_neighbour(
    recipe: str, neighbour: str, elements: list[float], scale_byte: str, codes: str
) -> None:
    x = head(elements, 32)
    rounding, _, mode = recipe.partition("/")
    found = torchao.mx(x, rounding, mode) if mode else torchao.nvfp4(x, None)
    assert stored(found[1], 1) == scale_byte
    assert stored(found[0], len(elements), bits=8 if mode == "mxfp8" else 4) == codes
    assert_same(x, f"torchao-0.18/{recipe}", codes=found[0], scales=found[1])
    assert_told_apart(x, neighbour, codes=found[0], scales=found[1])


def test_torchaos_nvfp4_multiplies_by_a_reciprocal_where_modelopt_divides() -> None:
    scale = float(np.float32(36 / 32 / 2688))
    x = head([9 / 32, 16 / 32], 16)
    codes, scales = torchao.nvfp4(x, scale)
    assert (stored(scales, 1), stored(codes, 2, bits=4)) == ("74", "57")
    assert_same(x, "torchao-0.18/nvfp4", codes=codes, scales=scales, scale=scale)
    assert_told_apart(x, "modelopt-0.47/nvfp4", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("mode", ["fp8_per_tensor", "fp8_per_token_head"])
@pytest.mark.parametrize(
    ("path", "neighbour", "dtype", "elements", "codes"),
    [
        # the encode multiplier in binary64 and the quotient by a float32 scale meet on different sides of a tie
        ("float8", "torchao-0.18/affine", "float32", [255 / 32, 186 / 32], "7e 7a"),
        # the scale is rounded to bfloat16 like modelopt's, the quotient is not
        ("affine", "modelopt-0.47", "bfloat16", [255 / 32, 24 / 32], "7e 63"),
    ],
)
def test_one_input_tells_a_float8_recipe_from_its_nearest_neighbour(
    path: str, neighbour: str, dtype: str, elements: list[float], codes: str, mode: str
) -> None:
    x = head(elements, 64, dtype)
    found = torchao.FLOAT8[path](x, mode)
    assert stored(found[0], len(elements)) == codes
    assert_same(x, f"torchao-0.18/{path}/{mode}", codes=found[0], scales=found[1])
    assert_told_apart(x, f"{neighbour}/{mode}", codes=found[0], scales=found[1])
