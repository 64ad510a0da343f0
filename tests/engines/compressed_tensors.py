"""compressed-tensors 0.20's quantizers, executed on the CPU; the tests of its recipes call it through here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engines import inputs, sources, turning
from tests.engines.judging import Codes
from tests.oracle import libraries
from tests.oracle.inputs import turning_points
from tests.oracle.libraries import array, nibbles, rows, tensor, tensors

SOURCE = sources.COMPRESSED_TENSORS
#: a scale for each row: the element, and where its codes end
ROWS: dict[str, tuple[str, tuple[float, ...]]] = {
    "fp8_per_token_head": ("e4m3fn", (448,)),
    "int8_per_token_head": ("int8", (127, 127.5, 128)),
}
#: a checkpoint's scale has the dtype of its weights: this one is a bfloat16
GIVEN = 0.0230712890625


def module(name: str) -> Any:
    """A module of compressed-tensors."""
    return libraries.load("compressed-tensors", "0.20.1", f"compressed_tensors.{name}")


def arguments(bits: int, kind: str, strategy: str, **more: Any) -> Any:
    """A symmetric scheme whose scales are computed."""
    return module("quantization").QuantizationArgs(
        num_bits=bits, type=kind, strategy=strategy, symmetric=True, dynamic=True, **more
    )


def _scales(t: Any, scheme: Any, **more: Any) -> Any:
    import torch

    helpers = module("quantization.utils.helpers")
    return helpers.compute_dynamic_scales_and_zp(t, scheme, torch.nn.Module(), **more)[0]


def scaled(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    """FP8 and INT8 per tensor or per token; the compressors pass no zero point for a symmetric scheme."""
    kind = "int" if mode.startswith("int8") else "float"
    scheme = arguments(8, kind, "tensor" if mode.endswith("tensor") else "token")
    scales = _scales(tensor(x), scheme)
    return scaled_codes(x, scales, scheme), array(scales)


def scaled_codes(x: NDArray, scales: Any, scheme: Any) -> NDArray[Any]:
    """Codes under given scales."""
    quantize = module("quantization.lifecycle.forward").quantize
    return array(quantize(tensor(x), scales, None, scheme, dtype=scheme.pytorch_dtype()))


def given_codes(x: NDArray) -> tuple[NDArray, NDArray]:
    """FP8 codes under GIVEN, and that scale."""
    given = tensor(np.array([GIVEN], np.float32)).to(tensor(x).dtype)
    return scaled_codes(x, given, arguments(8, "float", "tensor")), array(given)


def nvfp4(x: NDArray, scale: float) -> tuple[NDArray, NDArray]:
    """Codes and block scales under a global scale, an encode multiplier."""
    import torch

    given = torch.tensor([scale], dtype=torch.float32)
    scheme = arguments(4, "float", "tensor_group", group_size=16, scale_dtype=torch.float8_e4m3fn)
    scales = _scales(rows(x), scheme, global_scale=given)
    pack = module("compressors.nvfp4.helpers").quantize_and_pack_fp4
    return nibbles(pack(rows(x), scales, global_scale=given)), array(scales.to(torch.float8_e4m3fn))


def own_scale(x: NDArray) -> float:
    """The global scale that compressed-tensors takes."""
    return float(module("quantization.utils.helpers").generate_gparam(*rows(x).aminmax()))


def mx(x: NDArray, mode: str) -> tuple[NDArray, NDArray]:
    """Codes and the scales of blocks of 32."""
    import torch

    bits = 4 if mode == "mxfp4" else 8
    scheme = arguments(bits, "float", "group", group_size=32, scale_dtype=torch.uint8)
    scales = _scales(rows(x), scheme)
    if mode == "mxfp4":
        codes = nibbles(module("compressors.nvfp4.helpers").quantize_and_pack_fp4(rows(x), scales, group_size=32))
    else:
        quantize = module("quantization.lifecycle.forward").quantize
        codes = array(quantize(rows(x), scales, None, scheme, dtype=torch.float8_e4m3fn))
    return codes, array(module("compressors.mx_utils").compress_mx_scale(scales, torch.uint8))


# --- what is run -----------------------------------------------------------------------------------------------------

_SCALES = "compute_dynamic_scales_and_zp"


def answers() -> Iterator[Codes]:
    """Everything that is run, one answer at a time."""
    sources.imported(SOURCE, "compressed_tensors")
    for dtype in ("float32", "bfloat16", "float16"):
        for x in tensors(dtype):
            found = _unsigned(x, *nvfp4(x, own_scale(x)))
            yield _codes("nvfp4", "generate_gparam, quantize_and_pack_fp4", x, *found, what="tensors of all sizes")
        if dtype != "float16":
            yield from _blocks(dtype)
            for x in tensors(dtype):
                found = scaled(x, "fp8_per_tensor")
                yield _codes("fp8_per_tensor", f"{_SCALES}, quantize", x, *found, what="tensors of all sizes")
            x = turning.around(dtype, GIVEN)
            yield _codes(
                "fp8_per_tensor", "quantize", x, given_codes(x)[0], None, np.float32(GIVEN), "every pattern and tie"
            )
        for mode, (element, tops) in ROWS.items():
            if (mode, dtype) != ("int8_per_token_head", "float16"):
                units = turning.NARROW_UNITS if dtype == "float16" else turning.RANDOM_UNITS
                x = turning.groups(element, dtype, 64, units, tops)
                yield _codes(mode, f"{_SCALES}, quantize", x, *scaled(x, mode))


def _blocks(dtype: str) -> Iterator[Codes]:
    for scale in turning.ENCODE:
        x = turning.groups("e2m1fn", dtype, 16, turning_points("e4m3fn") / np.float32(scale), (6,))
        found = _unsigned(x, *nvfp4(x, scale))
        yield _codes("nvfp4", f"{_SCALES}, quantize_and_pack_fp4", x, *found, np.float32(scale))
    for mode, (element, tops) in turning.MX.items():
        # what becomes of a NaN depends on whether torch's amax met it in a vector or in the rest
        x = inputs.numbers(turning.groups(element, dtype, 32, turning.EXPONENTS, tops))
        function = "quantize_and_pack_fp4" if mode == "mxfp4" else "quantize"
        function = f"{_SCALES}, {function}, compress_mx_scale"
        codes, scales = mx(x, mode)
        codes = turning.unsigned(x, codes, scales, 0xFF) if mode == "mxfp4" else codes
        yield _codes(mode, function, x, codes, scales, what="hard rows without NaN")


def _unsigned(x: NDArray, codes: NDArray, scales: NDArray) -> tuple[NDArray, NDArray]:
    scales = turning.one_nan(scales)
    return turning.unsigned(x, codes, scales, 0x7F), scales


def _codes(
    mode: str, function: str, x: NDArray, codes: NDArray, scales: NDArray[Any] | None, given: Any = None,
    what: str = "hard rows",
) -> Codes:  # fmt: skip
    return Codes(
        f"compressed-tensors-0.20/{mode}", "CPU, torch", function, x, codes, scales, given, what, nan_as_class=True
    )
