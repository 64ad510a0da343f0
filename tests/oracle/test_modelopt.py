"""The recipes of nvidia-modelopt 0.47.0 against it, run on the CPU: byte for byte, 2 million values each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.oracle import libraries
from tests.oracle.inputs import turning_points
from tests.oracle.libraries import (
    adversarial,
    array,
    assert_same,
    assert_told_apart,
    finite,
    head,
    nibbles,
    rows,
    stored,
    tensors,
)

#: none is a power of two
GLOBAL_SCALES = (0.0013, 7.7e-5, 3.3)
#: every divisor that a row can lead to
RANDOM_UNITS = np.exp2(np.random.default_rng(3).uniform(-150, 118, 4096))
NARROW_UNITS = np.exp2(np.random.default_rng(4).uniform(-30, 7, 4096))
ROWS = {"fp8_per_token_head": ("e4m3fn", (448,)), "int8_per_token_head": ("int8", (127,))}
MX = {"mxfp4": ("e2m1fn", (4, 5, 6, 7, 8)), "mxfp8": ("e4m3fn", (256, 448, 464, 480, 496, 512))}


def _load(module: str) -> Any:
    return libraries.load("nvidia-modelopt", "0.47.0", f"modelopt.torch.quantization.qtensor.{module}")


def _nvfp4(x: NDArray, scale: float | None) -> tuple[NDArray, NDArray, float]:
    import torch

    given = None if scale is None else torch.tensor(scale, dtype=torch.float32)
    quantized, scales, shared = _load("nvfp4_tensor").NVFP4QTensor.quantize(rows(x), 16, None, given)
    return nibbles(quantized._quantized_data), array(scales), float(shared)


def _scaled(x: NDArray, mode: str, scale: Any = None) -> tuple[NDArray, NDArray]:
    tensors_ = _load("int8_tensor").INT8QTensor if mode.startswith("int8") else _load("fp8_tensor").FP8QTensor
    quantized, scales = tensors_.quantize(rows(x), scale, None if mode.endswith("tensor") else 0)
    return array(quantized._quantized_data), array(scales)


def _mx(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    if mode == "mxfp4":
        quantized, scales = _load("mxfp4_tensor").MXFP4QTensor.quantize(rows(x), 32)
        return nibbles(quantized._quantized_data), array(scales)
    quantized, scales = _load("mxfp8_tensor").MXFP8QTensor.quantize(rows(x))
    return array(quantized._quantized_data), array(scales)


@pytest.mark.parametrize("scale", GLOBAL_SCALES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nvfp4_is_modelopts(dtype: str, scale: float) -> None:
    units = turning_points("e4m3fn") * np.float32(scale)
    x = adversarial("e2m1fn", dtype, width=16, units=units, tops=(6,))
    codes, scales, _ = _nvfp4(x, scale)
    assert_same(x, "modelopt-0.47/nvfp4", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nvfp4s_own_global_scale_is_modelopts(dtype: str) -> None:
    for x in finite(tensors(dtype)):
        codes, scales, shared = _nvfp4(x, None)
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
    element, tops = ROWS[mode]
    units = NARROW_UNITS if dtype == "float16" else RANDOM_UNITS
    x = adversarial(element, dtype, width=64, units=units, tops=tops)
    codes, scales = _scaled(x, mode)
    assert_same(x, f"modelopt-0.47/{mode}", codes=codes, scales=scales)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_its_own_scale_is_modelopts(dtype: str) -> None:
    for x in tensors(dtype):
        codes, scales = _scaled(x, "fp8_per_tensor")
        assert_same(x, "modelopt-0.47/fp8_per_tensor", codes=codes, scales=scales)


@pytest.mark.parametrize("scale", GLOBAL_SCALES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fp8_per_tensor_with_a_given_scale_is_modelopts(dtype: str, scale: float) -> None:
    import torch

    x = adversarial("e4m3fn", dtype, width=64, units=np.array([scale]), tops=(448, 464, 480))
    codes, scales = _scaled(x, "fp8_per_tensor", torch.tensor(scale, dtype=torch.float32))
    assert_same(x, "modelopt-0.47/fp8_per_tensor", codes=codes, scales=scales, scale=scale)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mode", MX)
def test_microscaling_is_modelopts(mode: str, dtype: str) -> None:
    element, tops = MX[mode]
    x = adversarial(element, dtype, width=32, units=np.exp2(np.arange(-136.0, 126)), tops=tops)
    codes, scales = _mx(x, mode)
    assert_same(x, f"modelopt-0.47/{mode}", codes=codes, scales=scales)
