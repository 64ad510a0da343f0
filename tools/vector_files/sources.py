"""The sources that confirm an expectation: each is a conversion of its own, asked the same question."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import kvformat
from kvformat.elements import exact
from kvformat.elements.formats import ElementFormat
from tests.oracle.cuda_headers.build import CudaHeaders, build
from tests.oracle.inputs import ML_DTYPES, is_nan

Array = NDArray[Any]

#: every source by the name that files use. Versions stand in MANIFEST.json alone: what agrees does not change with them
SOURCES = {
    "kvformat": "the golden codecs and the engine of kvformat, compiled by Numba",
    "exact twin": "kvformat/elements/exact.py and kvformat/recipes/exact.py: exact fractions, from the definitions",
    "NumPy reader": "kvformat/recipes/plain.py: the recipe's program in NumPy, operation by operation",
    "CUDA headers": "NVIDIA's cuda_fp8.h and cuda_fp4.h, their host path compiled by g++",
    "ml_dtypes": "astype of the ml_dtypes types; for saturation the input is clipped first",
    "torch": "Tensor.to(torch.float8_*) on the CPU",
    "library": "the library that the recipe describes, run on the CPU, on every test of the group without a given "
    "scale",
    "NumPy": "np.rint and np.clip",
    "NumPy argmin": "the smallest distance to a value of the table, in binary64",
    "locate": "every code and scale of the exact twin put into its byte by Layout.locate, one at a time",
    "plain writer": "kvformat/verify/plain.py: arithmetic and addresses written out by hand in NumPy",
}


@cache
def cuda() -> CudaHeaders:
    """NVIDIA's headers, compiled for this run. Raises UnavailableError without g++ or the header wheels."""
    return build(Path(tempfile.mkdtemp(prefix="kvformat-cuda-")))


def versions() -> dict[str, str]:
    """The versions of what was run, for the manifest."""
    import torch

    return {
        "kvformat": kvformat.__version__,
        "numpy": np.__version__,
        "ml_dtypes": metadata.version("ml_dtypes"),
        "CUDA headers": cuda().version,
        "torch": torch.__version__.partition("+")[0],
        **{name: metadata.version(name) for name in ("torchao", "compressed-tensors", "nvidia-modelopt")},
    }


@dataclass(frozen=True)
class Way:
    """One way to encode: the policy of `kvformat.encode`."""

    overflow: str
    rounding: str


def ways(fmt: ElementFormat) -> tuple[Way, ...]:
    """The policies under which the format's codes differ, the default one first."""
    overflows = ("saturate",) if fmt.always_saturates else ("saturate", "ieee")
    return tuple(Way(overflow, rounding) for rounding in fmt.roundings for overflow in overflows)


def twin(x: Array, fmt: ElementFormat, way: Way) -> NDArray[np.uint8]:
    """The exact twin's codes, as patterns."""
    with np.errstate(invalid="ignore"):  # a signalling NaN
        numbers = x.astype(np.float64).tolist()
    return np.array(
        [exact.encode(each, fmt, overflow=way.overflow, rounding=way.rounding) for each in numbers], np.uint8
    )


def golden(x: Array, fmt: ElementFormat, way: Way) -> NDArray[np.uint8]:
    """The golden codec's codes, as patterns."""
    codes = kvformat.encode(x, fmt.name, overflow=way.overflow, rounding=way.rounding)
    patterns: NDArray[np.uint8] = codes.view(np.uint8) & np.uint8(fmt.codes - 1)
    return patterns


def others(x: Array, fmt: ElementFormat, way: Way) -> Iterator[tuple[str, NDArray[np.uint8]]]:
    """The codes of every third party that knows this conversion under this policy."""
    if fmt.kind == "integer":
        low, high = fmt.lowest, fmt.max
        with np.errstate(invalid="ignore"):
            whole = np.nan_to_num(np.clip(np.rint(x), low, high), nan=0.0).astype(np.int64)
        yield "NumPy", (whole & (fmt.codes - 1)).astype(np.uint8)
        return
    if fmt.kind == "codebook":
        yield "NumPy argmin", _nearest(x, fmt, way)
        return
    if _known_to_cuda(x, fmt, way):
        rounding = way.rounding if fmt.kind == "exponent" else None
        yield "CUDA headers", cuda().encode(x, fmt.name, overflow=way.overflow, rounding=rounding)
    if (
        fmt.name in ML_DTYPES and fmt.kind == "float" and x.dtype != np.float64
    ):  # it rounds float64 through float32, twice
        yield "ml_dtypes", _ml_dtypes(x, fmt, clip=way.overflow == "saturate")
    if fmt.kind == "float" and way.overflow == TORCH_OVERFLOW.get(fmt.name) and x.dtype != np.float64:
        yield "torch", torch_codes(x, fmt)


def _nearest(x: Array, fmt: ElementFormat, way: Way) -> NDArray[np.uint8]:
    """By distance: of two nearest values the one that the tie rule names. Distances of these numbers are exact."""
    with np.errstate(invalid="ignore"):
        wide = np.clip(x.astype(np.float64), fmt.lowest, fmt.max).reshape(-1, 1)
        distances = np.abs(np.array(fmt.table, np.float64) - wide)
        first = np.argmin(distances, axis=1)
        last = distances.shape[1] - 1 - np.argmin(distances[:, ::-1], axis=1)
    assert way.rounding in ("nearest_up", "nearest_down")
    return (last if way.rounding == "nearest_up" else first).astype(np.uint8)


#: what torch's cast does with overflow since 2.12
TORCH_OVERFLOW = {"e4m3fn": "saturate", "e5m2": "ieee", "e4m3fnuz": "ieee", "e5m2fnuz": "ieee"}


def torch_codes(x: Array, fmt: ElementFormat) -> NDArray[np.uint8]:
    """What torch makes of x on the CPU."""
    import torch

    if x.dtype == ml_dtypes.bfloat16:
        tensor = torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(x.copy())
    codes: NDArray[np.uint8] = tensor.to(getattr(torch, f"float8_{fmt.name}")).view(torch.uint8).numpy()
    return codes


def _known_to_cuda(x: Array, fmt: ElementFormat, way: Way) -> bool:
    if fmt.kind == "exponent":
        # for float64 the header narrows to float32 first, which moves the border of overflow
        return way.rounding in ("up", "down") and x.dtype not in (np.float16, np.float64)
    return fmt.name in ("e4m3fn", "e5m2", "e2m1fn")


def _ml_dtypes(x: Array, fmt: ElementFormat, *, clip: bool) -> NDArray[np.uint8]:
    with np.errstate(all="ignore"):
        wide = x.astype(np.float32)
        if clip:
            wide = np.clip(wide, -np.float32(fmt.max), np.float32(fmt.max))
        return wide.astype(ML_DTYPES[fmt.name]).view(np.uint8)


def confirmed(x: Array, fmt: ElementFormat, way: Way) -> tuple[NDArray[np.uint8], list[str]]:
    """The codes of x and the sources that gave them. Raises AssertionError where any of them gives another one.

    A NaN input is judged as a class: NaN codes count as one, and where the format has none third parties are not asked.
    """
    codes = twin(x, fmt, way)
    _agree(golden(x, fmt, way), codes, x, "kvformat")
    names = ["exact twin", "kvformat"]
    number = ~is_nan(x)
    for name, found in others(x, fmt, way):
        _agree(found[number], codes[number], x[number], name)
        assert fmt.nan_input_code not in fmt.nan_codes or np.isin(found[~number], fmt.nan_codes).all(), name
        names.append(name)
    return codes, names


def _agree(found: Array, expected: Array, x: Array, name: str) -> None:
    wrong = np.flatnonzero(found != expected)
    if wrong.size:
        at = wrong[0]
        raise AssertionError(f"{name}: {x[at]!r} becomes {found[at]:#x}, not {expected[at]:#x} ({wrong.size} differ)")
