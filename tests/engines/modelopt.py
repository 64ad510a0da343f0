"""nvidia-modelopt 0.47's quantized tensors, executed on the CPU; the tests of its recipes call it through here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engines import sources, turning
from tests.engines.judging import Codes
from tests.oracle import libraries
from tests.oracle.inputs import turning_points
from tests.oracle.libraries import array, nibbles, rows, tensors

SOURCE = sources.MODELOPT
#: a scale for each row: the element, and where its codes end
ROWS: dict[str, tuple[str, tuple[float, ...]]] = {
    "fp8_per_token_head": ("e4m3fn", (448,)),
    "int8_per_token_head": ("int8", (127,)),
}


def module(name: str) -> Any:
    """A module of modelopt's quantized tensors."""
    return libraries.load("nvidia-modelopt", "0.47.0", f"modelopt.torch.quantization.qtensor.{name}")


def nvfp4(x: NDArray, scale: float | None) -> tuple[NDArray, NDArray, float]:
    """Codes, block scales and the global scale, given or its own."""
    import torch

    given = None if scale is None else torch.tensor(scale, dtype=torch.float32)
    quantized, scales, shared = module("nvfp4_tensor").NVFP4QTensor.quantize(rows(x), 16, None, given)
    return nibbles(quantized._quantized_data), array(scales), float(shared)


def scaled(x: NDArray, mode: str, scale: Any = None) -> tuple[NDArray, NDArray]:
    """FP8 and INT8: codes, and the scales of the tensor or of each row."""
    kind = module("int8_tensor").INT8QTensor if mode.startswith("int8") else module("fp8_tensor").FP8QTensor
    quantized, scales = kind.quantize(rows(x), scale, None if mode.endswith("tensor") else 0)
    return array(quantized._quantized_data), array(scales)


def mx(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    """Codes and the scales of blocks of 32."""
    if mode == "mxfp4":
        quantized, scales = module("mxfp4_tensor").MXFP4QTensor.quantize(rows(x), 32)
        return nibbles(quantized._quantized_data), array(scales)
    quantized, scales = module("mxfp8_tensor").MXFP8QTensor.quantize(rows(x))
    return array(quantized._quantized_data), array(scales)


# --- what is run -----------------------------------------------------------------------------------------------------


def answers() -> Iterator[Codes]:
    """Everything that is run, one answer at a time."""
    sources.imported(SOURCE, "modelopt")
    for dtype in ("float32", "bfloat16", "float16"):
        if dtype != "float16":
            yield from _given(dtype)
        for x in libraries.finite(tensors(dtype)):
            codes, scales, _ = nvfp4(x, None)
            yield _codes("nvfp4", "NVFP4QTensor", x, codes, turning.one_nan(scales), what="tensors of all sizes")
        for mode, (element, tops) in ROWS.items():
            if (mode, dtype) != ("fp8_per_token_head", "float16"):
                units = turning.NARROW_UNITS if dtype == "float16" else turning.RANDOM_UNITS
                x = turning.groups(element, dtype, 64, units, tops)
                yield _codes(mode, _CLASSES[mode[:4]], x, *scaled(x, mode))


def _given(dtype: str) -> Iterator[Codes]:
    import torch

    for scale in turning.DECODE:
        x = turning.groups("e2m1fn", dtype, 16, turning_points("e4m3fn") * np.float32(scale), (6,))
        codes, scales, _ = nvfp4(x, scale)
        yield _codes("nvfp4", "NVFP4QTensor", x, codes, turning.one_nan(scales), np.float32(scale))
        x = turning.around(dtype, scale)
        codes, _ = scaled(x, "fp8_per_tensor", torch.tensor(scale, dtype=torch.float32))
        yield _codes("fp8_per_tensor", "FP8QTensor", x, codes, None, np.float32(scale), "every pattern and tie")
    for x in tensors(dtype):
        yield _codes("fp8_per_tensor", "FP8QTensor", x, *scaled(x, "fp8_per_tensor"), what="tensors of all sizes")
    for mode, (element, tops) in turning.MX.items():
        x = turning.groups(element, dtype, 32, turning.EXPONENTS, tops)
        yield _codes(mode, f"{mode.upper()}QTensor", x, *mx(x, mode))


_CLASSES = {"int8": "INT8QTensor", "fp8_": "FP8QTensor"}


def _codes(
    mode: str, kind: str, x: NDArray, codes: NDArray, scales: NDArray[Any] | None, given: Any = None,
    what: str = "hard rows",
) -> Codes:  # fmt: skip
    return Codes(
        f"modelopt-0.47/{mode}", "CPU, torch", f"{kind}.quantize", x, codes, scales, given, what, nan_as_class=True
    )
