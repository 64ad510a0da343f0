"""The recipes of compressed-tensors 0.20.1 against it, run on the CPU: byte for byte, 2 million values each."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engines import compressed_tensors as library
from tests.engines.turning import ENCODE, EXPONENTS, MX, NARROW_UNITS, RANDOM_UNITS
from tests.oracle.inputs import is_nan, turning_points
from tests.oracle.libraries import (
    adversarial,
    assert_same,
    assert_told_apart,
    head,
    stored,
    tensors,
)


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Skips before any input is made."""
    library.module("quantization")


@pytest.mark.parametrize("scale", ENCODE)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nvfp4_is_compressed_tensors(dtype: str, scale: float) -> None:
    units = turning_points("e4m3fn") / np.float32(scale)
    x = adversarial("e2m1fn", dtype, width=16, units=units, tops=(6,))
    codes, scales = library.nvfp4(x, scale)
    assert_same(x, "compressed-tensors-0.20/nvfp4", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nvfp4s_own_global_scale_is_compressed_tensors(dtype: str) -> None:
    for x in tensors(dtype):
        scale = library.own_scale(x)
        codes, scales = library.nvfp4(x, scale)
        assert_same(x, "compressed-tensors-0.20/nvfp4", codes=codes, scales=scales, global_scale=scale)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("fp8_per_token_head", "float32"),
        ("fp8_per_token_head", "bfloat16"),
        ("fp8_per_token_head", "float16"),
        ("int8_per_token_head", "float32"),
        ("int8_per_token_head", "bfloat16"),
    ],
)
def test_the_token_strategy_on_heads_is_compressed_tensors(mode: str, dtype: str) -> None:
    element, tops = library.ROWS[mode]
    units = NARROW_UNITS if dtype == "float16" else RANDOM_UNITS
    x = adversarial(element, dtype, width=64, units=units, tops=tops)
    codes, scales = library.scaled(x, mode)
    assert_same(x, f"compressed-tensors-0.20/{mode}", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_its_own_scale_is_compressed_tensors(dtype: str) -> None:
    for x in tensors(dtype):
        codes, scales = library.scaled(x, "fp8_per_tensor")
        assert_same(x, "compressed-tensors-0.20/fp8_per_tensor", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_a_given_scale_is_compressed_tensors(dtype: str) -> None:
    scale = library.GIVEN
    x = adversarial("e4m3fn", dtype, width=64, units=np.array([scale]), tops=(448, 464, 480))
    codes, given = library.given_codes(x)
    assert_same(x, "compressed-tensors-0.20/fp8_per_tensor", codes=codes, scales=given, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MX)
def test_microscaling_is_compressed_tensors(mode: str, dtype: str) -> None:
    element, tops = MX[mode]
    x = adversarial(element, dtype, width=32, units=EXPONENTS, tops=tops)
    # what becomes of a NaN depends on whether torch's amax met it in a vector or in the rest (see the recipe)
    x[is_nan(x)] = np.inf
    codes, scales = library.mx(x, mode)
    assert_same(x, f"compressed-tensors-0.20/{mode}", codes=codes, scales=scales)


# What tells a recipe from its nearest neighbour: elements, then the scale and first codes that the library stores.


@pytest.mark.parametrize(
    ("mode", "neighbour", "elements", "scale_byte", "codes"),
    [
        # a zero loses its sign
        ("mxfp4", "torchao-0.18/even", [6.0, -0.25, -0.0], "7f", "780"),
        # e2m1's 1.75 decides, although e4m3 would hold 448 without doubling the scale
        ("mxfp8", "torchao-0.18/even", [448.0, 1.0], "80", "76 30"),
    ],
)
def test_one_input_tells_a_microscaling_recipe_from_its_nearest_neighbour(
    mode: str, neighbour: str, elements: list[float], scale_byte: str, codes: str
) -> None:
    x = head(elements, 32)
    found = library.mx(x, mode)
    assert stored(found[1], 1) == scale_byte
    assert stored(found[0], len(elements), bits=4 if mode == "mxfp4" else 8) == codes
    assert_same(x, f"compressed-tensors-0.20/{mode}", codes=found[0], scales=found[1])
    assert_told_apart(x, f"{neighbour}/{mode}", codes=found[0], scales=found[1])


def test_an_nvfp4_block_scale_that_rounds_to_zero_becomes_an_eighth() -> None:
    x = head([6 * 2.0**-10, 3 * 2.0**-10, -(2.0**-10)], 16)
    codes, scales = library.nvfp4(x, 1.0)
    assert (stored(scales, 1), stored(codes, 3, bits=4)) == ("20", "008")
    assert_same(x, "compressed-tensors-0.20/nvfp4", codes=codes, scales=scales, scale=1.0)
    assert_told_apart(x, "vllm-0.33/emulation/nvfp4", codes=codes, scales=scales, scale=1.0)


def test_the_global_scale_is_a_reciprocal_times_2688_in_the_inputs_dtype() -> None:
    # 2688 / 0.494140625 is 5440 in bfloat16
    amax = head([0.494140625], 16, "bfloat16")
    assert library.own_scale(amax) == 5472
    codes, scales = library.nvfp4(amax, 5472)
    assert_same(amax, "compressed-tensors-0.20/nvfp4", codes=codes, scales=scales, global_scale=5472)


@pytest.mark.parametrize(
    ("mode", "neighbour", "elements", "scale", "codes"),
    [
        # zeros have the machine epsilon of the dtype as their scale, where modelopt's is 0 and its codes NaN
        ("fp8_per_tensor", "modelopt-0.47", [0.0, -0.0], 2.0**-23, "00 80"),
        ("fp8_per_token_head", "modelopt-0.47", [0.0, -0.0], 2.0**-23, "00 80"),
        # amax / 127.5
        ("int8_per_token_head", "modelopt-0.47", [127.0, 0.5, 1.5, 126.5, -127.0], 0.99607843, "7f 01 02 7f 80"),
    ],
)
def test_one_input_tells_a_scaled_recipe_from_its_nearest_neighbour(
    mode: str, neighbour: str, elements: list[float], scale: float, codes: str
) -> None:
    x = head(elements, 64)
    found = library.scaled(x, mode)
    assert found[1].reshape(()) == np.float32(scale)
    assert stored(found[0], len(elements)) == codes
    assert_same(x, f"compressed-tensors-0.20/{mode}", codes=found[0], scales=found[1])
    assert_told_apart(x, f"{neighbour}/{mode}", codes=found[0], scales=found[1])
