"""The recipes of nvidia-modelopt 0.47.0 against it, run on the CPU: byte for byte, 2 million values each."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines import modelopt
from tests.engines.turning import DECODE, EXPONENTS, MX, NARROW_UNITS, RANDOM_UNITS
from tests.oracle.inputs import turning_points
from tests.oracle.libraries import (
    adversarial,
    assert_same,
    assert_told_apart,
    finite,
    head,
    stored,
    tensors,
)


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Skips before any input is made."""
    modelopt.module("nvfp4_tensor")


@pytest.mark.parametrize("scale", DECODE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nvfp4_is_modelopts(dtype: str, scale: float) -> None:
    units = turning_points("e4m3fn") * np.float32(scale)
    x = adversarial("e2m1fn", dtype, width=16, units=units, tops=(6,))
    codes, scales, _ = modelopt.nvfp4(x, scale)
    assert_same(x, "modelopt-0.47/nvfp4", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nvfp4s_own_global_scale_is_modelopts(dtype: str) -> None:
    for x in finite(tensors(dtype)):
        codes, scales, shared = modelopt.nvfp4(x, None)
        assert_same(x, "modelopt-0.47/nvfp4", codes=codes, scales=scales, global_scale=shared)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("fp8_per_token_head", "float32"),
        ("fp8_per_token_head", "bfloat16"),
        ("int8_per_token_head", "float32"),
        ("int8_per_token_head", "bfloat16"),
        ("int8_per_token_head", "float16"),
    ],
)
def test_a_scale_per_row_is_modelopts(mode: str, dtype: str) -> None:
    element, tops = modelopt.ROWS[mode]
    units = NARROW_UNITS if dtype == "float16" else RANDOM_UNITS
    x = adversarial(element, dtype, width=64, units=units, tops=tops)
    codes, scales = modelopt.scaled(x, mode)
    assert_same(x, f"modelopt-0.47/{mode}", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_its_own_scale_is_modelopts(dtype: str) -> None:
    for x in tensors(dtype):
        codes, scales = modelopt.scaled(x, "fp8_per_tensor")
        assert_same(x, "modelopt-0.47/fp8_per_tensor", codes=codes, scales=scales)


@pytest.mark.parametrize("scale", DECODE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_a_given_scale_is_modelopts(dtype: str, scale: float) -> None:
    import torch

    x = adversarial("e4m3fn", dtype, width=64, units=np.array([scale]), tops=(448, 464, 480))
    codes, scales = modelopt.scaled(x, "fp8_per_tensor", torch.tensor(scale, dtype=torch.float32))
    assert_same(x, "modelopt-0.47/fp8_per_tensor", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MX)
def test_microscaling_is_modelopts(mode: str, dtype: str) -> None:
    element, tops = MX[mode]
    x = adversarial(element, dtype, width=32, units=EXPONENTS, tops=tops)
    codes, scales = modelopt.mx(x, mode)
    assert_same(x, f"modelopt-0.47/{mode}", codes=codes, scales=scales)


# What tells a recipe from its nearest neighbour: elements, then the scale and first codes that the library stores.
TIES = [0.25, -0.25, 0.75, -0.75, 1.25, -1.25, 1.75, -1.75, 2.5, -2.5, 3.5, -3.5, 5.0, -5.0, 6.0, -0.0]


@pytest.mark.parametrize(
    ("mode", "neighbour", "elements", "scale_byte", "codes"),
    [
        # ties go toward zero
        ("mxfp4", "torchao-0.18/rceil", TIES, "7f", "08192a3b4c5d6e78"),
        # a positive zero is stored as -0
        ("mxfp4", "compressed-tensors-0.20", [0.0, -0.0], "00", "88"),
        # a scale byte of 0 multiplies by 2^127, not by 1
        ("mxfp8", "torchao-0.18/rceil", [2.0**-126, -(2.0**-127)], "00", "40 b8"),
    ],
)
def test_one_input_tells_a_microscaling_recipe_from_its_nearest_neighbour(
    mode: str, neighbour: str, elements: list[float], scale_byte: str, codes: str
) -> None:
    x = head(elements, 32)
    found = modelopt.mx(x, mode)
    assert stored(found[1], 1) == scale_byte
    assert stored(found[0], len(elements), bits=4 if mode == "mxfp4" else 8) == codes
    assert_same(x, f"modelopt-0.47/{mode}", codes=found[0], scales=found[1])
    assert_told_apart(x, f"{neighbour}/{mode}", codes=found[0], scales=found[1])


@pytest.mark.parametrize(
    ("neighbour", "elements", "scale_byte", "codes"),
    [
        # a block of zeros has the scale 1, any other at least 2^-9
        ("golden/nvfp4", [0.0, -0.0], "38", "00"),
        ("golden/nvfp4", [6 * 2.0**-10, 3 * 2.0**-10, -(2.0**-10)], "01", "539"),
        ("torchao-0.18/nvfp4", [6 * 2.0**-10, 3 * 2.0**-10, -(2.0**-10)], "01", "539"),
    ],
)
def test_one_input_tells_the_nvfp4_recipe_from_its_nearest_neighbours(
    neighbour: str, elements: list[float], scale_byte: str, codes: str
) -> None:
    x = head(elements, 16)
    found = modelopt.nvfp4(x, 1.0)
    assert (stored(found[1], 1), stored(found[0], len(elements), bits=4)) == (scale_byte, codes)
    assert_same(x, "modelopt-0.47/nvfp4", codes=found[0], scales=found[1], scale=1.0)
    assert_told_apart(x, neighbour, codes=found[0], scales=found[1], scale=1.0)


@pytest.mark.parametrize(
    ("mode", "neighbour", "dtype", "elements", "scale", "codes"),
    [
        # a bfloat16 quotient: 119/32 / s rounds onto a tie of e4m3, and then to even
        ("fp8_per_token_head", "golden", "bfloat16", [133 / 32, 119 / 32], 0.00927734375, "7e 7c"),
        ("fp8_per_tensor", "golden", "bfloat16", [133 / 32, 119 / 32], 0.00927734375, "7e 7c"),
        # a scale in bfloat16
        ("int8_per_token_head", "golden", "bfloat16", [133 / 32, 119 / 32], 0.03271484375, "7f 72"),
        # -127, and halves to even
        ("int8_per_token_head", "compressed-tensors-0.20", "float32", [127.0, 0.5, 1.5, -127.0], 1.0, "7f 00 02 81"),
    ],
)
def test_one_input_tells_a_scaled_recipe_from_its_nearest_neighbour(
    mode: str, neighbour: str, dtype: str, elements: list[float], scale: float, codes: str
) -> None:
    x = head(elements, 64, dtype)
    found = modelopt.scaled(x, mode)
    assert found[1].reshape(()) == np.float32(scale)
    assert stored(found[0], len(elements)) == codes
    assert_same(x, f"modelopt-0.47/{mode}", codes=found[0], scales=found[1])
    assert_told_apart(x, f"{neighbour}/{mode}", codes=found[0], scales=found[1])


def test_zeros_have_the_scale_0_and_nan_codes_in_fp8() -> None:
    x = head([0.0, -0.0], 64)
    codes, scales = modelopt.scaled(x, "fp8_per_token_head")
    assert scales.reshape(()) == 0
    assert np.isin(codes, (0x7F, 0xFF)).all()
    assert_same(x, "modelopt-0.47/fp8_per_token_head", codes=codes, scales=scales)
    assert_told_apart(x, "compressed-tensors-0.20/fp8_per_token_head", codes=codes, scales=scales)
