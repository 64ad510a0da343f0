"""The recipes of compressed-tensors 0.20.1 against it, run on the CPU: byte for byte, 2 million values each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.oracle import libraries
from tests.oracle.inputs import is_nan, turning_points
from tests.oracle.libraries import (
    adversarial,
    array,
    assert_same,
    assert_told_apart,
    head,
    nibbles,
    rows,
    stored,
    tensor,
    tensors,
)

#: encode multipliers; none is a power of two
GLOBAL_SCALES = (769.3, 12987.1, 0.303)
#: every divisor that a row can lead to
RANDOM_UNITS = np.exp2(np.random.default_rng(3).uniform(-150, 118, 4096))
NARROW_UNITS = np.exp2(np.random.default_rng(4).uniform(-30, 7, 4096))
ROWS = {"fp8_per_token_head": ("e4m3fn", "float", (448,)), "int8_per_token_head": ("int8", "int", (127, 127.5, 128))}
MX = {"mxfp4": ("e2m1fn", 4, (4, 5, 6, 7, 8)), "mxfp8": ("e4m3fn", 8, (256, 448, 464, 480, 496, 512))}


def _load(module: str) -> Any:
    return libraries.load("compressed-tensors", "0.20.1", f"compressed_tensors.{module}")


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Skips before any input is made."""
    _load("quantization")


def _arguments(bits: int, kind: str, strategy: str, **more: Any) -> Any:
    return _load("quantization").QuantizationArgs(
        num_bits=bits, type=kind, strategy=strategy, symmetric=True, dynamic=True, **more
    )


def _scales(t: Any, arguments: Any, **more: Any) -> Any:
    import torch

    helpers = _load("quantization.utils.helpers")
    return helpers.compute_dynamic_scales_and_zp(t, arguments, torch.nn.Module(), **more)[0]


def _scaled(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    """FP8 and INT8 per tensor or per token; the compressors pass no zero point for a symmetric scheme."""
    kind = "int" if mode.startswith("int8") else "float"
    arguments = _arguments(8, kind, "tensor" if mode.endswith("tensor") else "token")
    scales = _scales(tensor(x), arguments)
    return _scaled_codes(x, scales, arguments), array(scales)


def _scaled_codes(x: NDArray, scales: Any, arguments: Any) -> NDArray:
    quantize = _load("quantization.lifecycle.forward").quantize
    return array(quantize(tensor(x), scales, None, arguments, dtype=arguments.pytorch_dtype()))


def _nvfp4(x: NDArray, scale: float) -> tuple[NDArray, NDArray]:
    import torch

    given = torch.tensor([scale], dtype=torch.float32)
    arguments = _arguments(4, "float", "tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn)
    scales = _scales(rows(x), arguments, global_scale=given)
    pack = _load("compressors.nvfp4.helpers").quantize_and_pack_fp4
    return nibbles(pack(rows(x), scales, global_scale=given)), array(scales.to(torch.float8_e4m3fn))


def _mx(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    import torch

    arguments = _arguments(MX[mode][1], "float", "group", group_size=32, scale_dtype=torch.uint8)
    scales = _scales(rows(x), arguments)
    if mode == "mxfp4":
        codes = nibbles(_load("compressors.nvfp4.helpers").quantize_and_pack_fp4(rows(x), scales, group_size=32))
    else:
        quantize = _load("quantization.lifecycle.forward").quantize
        codes = array(quantize(rows(x), scales, None, arguments, dtype=torch.float8_e4m3fn))
    return codes, array(_load("compressors.mx_utils").compress_mx_scale(scales, torch.uint8))


@pytest.mark.parametrize("scale", GLOBAL_SCALES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nvfp4_is_compressed_tensors(dtype: str, scale: float) -> None:
    units = turning_points("e4m3fn") / np.float32(scale)
    x = adversarial("e2m1fn", dtype, width=16, units=units, tops=(6,))
    codes, scales = _nvfp4(x, scale)
    assert_same(x, "compressed-tensors-0.20/nvfp4", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nvfp4s_own_global_scale_is_compressed_tensors(dtype: str) -> None:
    generate = _load("quantization.utils.helpers").generate_gparam
    for x in tensors(dtype):
        scale = float(generate(*rows(x).aminmax()))
        codes, scales = _nvfp4(x, scale)
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
    element, _, tops = ROWS[mode]
    units = NARROW_UNITS if dtype == "float16" else RANDOM_UNITS
    x = adversarial(element, dtype, width=64, units=units, tops=tops)
    codes, scales = _scaled(x, mode)
    assert_same(x, f"compressed-tensors-0.20/{mode}", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_its_own_scale_is_compressed_tensors(dtype: str) -> None:
    for x in tensors(dtype):
        codes, scales = _scaled(x, "fp8_per_tensor")
        assert_same(x, "compressed-tensors-0.20/fp8_per_tensor", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_a_given_scale_is_compressed_tensors(dtype: str) -> None:
    # a checkpoint's scale has the dtype of its weights: 0.0230712890625 is a bfloat16
    scale = 0.0230712890625
    x = adversarial("e4m3fn", dtype, width=64, units=np.array([scale]), tops=(448, 464, 480))
    given = tensor(np.array([scale], np.float32)).to(tensor(x).dtype)
    codes = _scaled_codes(x, given, _arguments(8, "float", "tensor"))
    assert_same(x, "compressed-tensors-0.20/fp8_per_tensor", codes=codes, scales=array(given), scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MX)
def test_microscaling_is_compressed_tensors(mode: str, dtype: str) -> None:
    element, _, tops = MX[mode]
    x = adversarial(element, dtype, width=32, units=np.exp2(np.arange(-136.0, 126)), tops=tops)
    # what becomes of a NaN depends on whether torch's amax met it in a vector or in the rest (see the recipe)
    x[is_nan(x)] = np.inf
    codes, scales = _mx(x, mode)
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
    found = _mx(x, mode)
    assert stored(found[1], 1) == scale_byte
    assert stored(found[0], len(elements), bits=4 if mode == "mxfp4" else 8) == codes
    assert_same(x, f"compressed-tensors-0.20/{mode}", codes=found[0], scales=found[1])
    assert_told_apart(x, f"{neighbour}/{mode}", codes=found[0], scales=found[1])


def test_an_nvfp4_block_scale_that_rounds_to_zero_becomes_an_eighth() -> None:
    x = head([6 * 2.0**-10, 3 * 2.0**-10, -(2.0**-10)], 16)
    codes, scales = _nvfp4(x, 1.0)
    assert (stored(scales, 1), stored(codes, 3, bits=4)) == ("20", "008")
    assert_same(x, "compressed-tensors-0.20/nvfp4", codes=codes, scales=scales, scale=1.0)
    assert_told_apart(x, "vllm-0.33/emulation/nvfp4", codes=codes, scales=scales, scale=1.0)


def test_the_global_scale_is_a_reciprocal_times_2688_in_the_inputs_dtype() -> None:
    # 2688 / 0.494140625 is 5440 in bfloat16
    amax = head([0.494140625], 16, "bfloat16")
    assert float(_load("quantization.utils.helpers").generate_gparam(*rows(amax).aminmax())) == 5472
    codes, scales = _nvfp4(amax, 5472)
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
    found = _scaled(x, mode)
    assert found[1].reshape(()) == np.float32(scale)
    assert stored(found[0], len(elements)) == codes
    assert_same(x, f"compressed-tensors-0.20/{mode}", codes=found[0], scales=found[1])
    assert_told_apart(x, f"{neighbour}/{mode}", codes=found[0], scales=found[1])
