"""torchao 0.18's quantizers, executed on the CPU; the tests of its recipes call it through here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engines import inputs, sources, turning
from tests.engines.judging import Codes
from tests.oracle import libraries
from tests.oracle.inputs import turning_points
from tests.oracle.libraries import array, nibbles, rows, tensors

SOURCE = sources.TORCHAO
ROUNDINGS = ("floor", "ceil", "even", "rceil")


def module(name: str) -> Any:
    """A module of torchao."""
    return libraries.load("torchao", "0.18.0", f"torchao.{name}")


def nvfp4(x: NDArray, scale: float | None) -> tuple[NDArray, NDArray]:
    """Codes and block scales, under a global scale or without one."""
    import torch

    given = None if scale is None else torch.tensor(scale, dtype=torch.float32)
    scales, codes = module("prototype.mx_formats.nvfp4_tensor").nvfp4_quantize(rows(x), 16, given)
    return nibbles(codes), array(scales)


def own_scale(x: NDArray) -> float:
    """The global scale that torchao takes."""
    return float(module("prototype.mx_formats.nvfp4_tensor").per_tensor_amax_to_scale(rows(x).abs().max()))


def mx(x: NDArray, rounding: str, mode: str) -> tuple[NDArray, NDArray]:
    """Codes and the scales of blocks of 32."""
    import torch

    found = module("prototype.mx_formats.mx_tensor")
    element = torch.float4_e2m1fn_x2 if mode == "mxfp4" else torch.float8_e4m3fn
    scales, codes = found.to_mx(rows(x), element, 32, found.ScaleCalculationMode[rounding.upper()])
    return nibbles(codes) if mode == "mxfp4" else array(codes), array(scales)


def training(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    """`torchao.float8`: codes and encode multipliers, of the tensor or of each row."""
    import torch

    config = module("float8.config").ScalingGranularity
    per_tensor = mode == "fp8_per_tensor"
    scale = module("float8.float8_utils").tensor_to_scale(
        rows(x),
        torch.float8_e4m3fn,
        scaling_granularity=config.TENSORWISE if per_tensor else config.AXISWISE,
        axiswise_dim=None if per_tensor else -1,
    )
    return training_codes(x, scale), array(scale)


def training_codes(x: NDArray, scale: Any) -> NDArray[Any]:
    """Codes under an encode multiplier, a tensor."""
    import torch

    to_float8 = module("float8.float8_training_tensor").hp_tensor_and_scale_to_float8
    return array(to_float8(rows(x), scale, torch.float8_e4m3fn)._data)


def affine(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    """`torchao.quantization`: codes and scales, of the tensor or of each row."""
    t = rows(x)
    block = list(t.shape) if mode == "fp8_per_tensor" else [1, t.shape[1]]
    scale = module("quantization.quant_primitives")._choose_scale_float8(t, block)
    return affine_codes(x, scale), array(scale)


def affine_codes(x: NDArray, scale: Any) -> NDArray[Any]:
    """Codes under a scale, a tensor."""
    return array(module("quantization.quant_primitives")._quantize_affine_float8(rows(x), scale))


FLOAT8 = {"float8": training, "affine": affine}
_FUNCTIONS = {
    "float8": "tensor_to_scale, hp_tensor_and_scale_to_float8",
    "affine": "_choose_scale_float8, _quantize_affine_float8",
}


# --- what is run -----------------------------------------------------------------------------------------------------


def answers() -> Iterator[Codes]:
    """Everything that is run, one answer at a time."""
    sources.imported(SOURCE, "torchao")
    for dtype in ("float32", "bfloat16"):
        yield from _nvfp4(dtype)
        for mode, (element, tops) in turning.MX.items():
            x, what = turning.groups(element, dtype, 32, turning.EXPONENTS, tops), "hard rows"
            if mode == "mxfp4":
                x, what = inputs.numbers(x), _NUMBERS
            for rounding in ROUNDINGS:
                yield _codes(f"{rounding}/{mode}", "to_mx", x, *mx(x, rounding, mode), what=what)
        for path in FLOAT8:
            yield from _float8(path, dtype)


def _nvfp4(dtype: str) -> Iterator[Codes]:
    for scale in turning.DECODE:
        x = inputs.numbers(turning.groups("e2m1fn", dtype, 16, turning_points("e4m3fn") * np.float32(scale), (6,)))
        yield _codes("nvfp4", "nvfp4_quantize", x, *nvfp4(x, scale), np.float32(scale), what=_NUMBERS)
    x = inputs.numbers(turning.groups("e2m1fn", dtype, 16, turning_points("e4m3fn"), (6,)))
    yield _codes("nvfp4_single_level", "nvfp4_quantize", x, *nvfp4(x, None), what=_NUMBERS)
    for x in libraries.finite(tensors(dtype)):
        yield _codes("nvfp4", "per_tensor_amax_to_scale, nvfp4_quantize", x, *nvfp4(x, own_scale(x)), what=_TENSORS)


def _float8(path: str, dtype: str) -> Iterator[Codes]:
    import torch

    function = _FUNCTIONS[path]
    x = turning.groups("e4m3fn", dtype, 64, turning.RANDOM_UNITS, (448,))
    yield _codes(f"{path}/fp8_per_token_head", function, x, *FLOAT8[path](x, "fp8_per_token_head"))
    for x in tensors(dtype):
        yield _codes(f"{path}/fp8_per_tensor", function, x, *FLOAT8[path](x, "fp8_per_tensor"), what=_TENSORS)
    for scale in turning.DECODE:
        given = torch.tensor(scale, dtype=torch.float32)
        x = turning.around(dtype, 1 / scale if path == "float8" else scale)
        codes = training_codes(x, given) if path == "float8" else affine_codes(x, given.reshape(1))
        yield _codes(f"{path}/fp8_per_tensor", function.split(", ")[1], x, codes, None, np.float32(scale), _AROUND)


_TENSORS, _AROUND = "tensors of all sizes", "every pattern and tie"
#: the e2m1fn code of a NaN depends on its payload
_NUMBERS = "hard rows without NaN"


def _codes(
    recipe: str, function: str, x: NDArray, codes: NDArray, scales: NDArray[Any] | None, given: Any = None,
    what: str = "hard rows",
) -> Codes:  # fmt: skip
    return Codes(
        f"torchao-0.18/{recipe}", "CPU, torch", function, x, codes, scales, given, what, nan_as_class=True
    )  # fmt: skip
