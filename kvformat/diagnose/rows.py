"""What one side of some tokens becomes in the hands of a writer: codes and scales as they lie in a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element

Mask = NDArray[np.bool_]

#: the dtypes that mode none stores, by name
BINARY: Mapping[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


@dataclass(frozen=True)
class Rows:
    """What one side of some tokens becomes."""

    #: patterns (tokens, heads, dims), one per entry; mode none: the bytes of the values (tokens, heads, bytes)
    codes: NDArray[np.uint8]
    #: bits of a code
    bits: int
    #: as they lie in the page (tokens, heads, bytes); no bytes where the page holds none
    scales: NDArray[np.uint8]
    #: dtype of the scales in the page, or of the values in mode none: what compares as a class where it is NaN
    scale_dtype: str
    code_dtype: str
    #: which tokens are predicted: the neighbour of the first token is not known
    known: Mask | None = None
    #: the scales may be anything
    any_scale: bool = False
    #: which bytes of codes and scales are predicted, where it is not whole tokens
    predicted: tuple[Mask, Mask] | None = None

    @cached_property
    def nan_codes(self) -> NDArray[np.int64]:
        """Where a code, one a byte, is NaN: flat indices of its bytes."""
        return np.flatnonzero(is_nan(self.codes, self.code_dtype))

    @cached_property
    def nan_scales(self) -> NDArray[np.int64]:
        """Where a scale in the page is NaN: flat indices of its bytes."""
        return np.flatnonzero(is_nan(self.scales, self.scale_dtype))

    @property
    def digest(self) -> tuple[Any, ...]:
        """What tells these rows from others."""
        masks = (self.known, *(self.predicted or ()))
        known = tuple(None if mask is None else mask.tobytes() for mask in masks)
        return self.codes.tobytes(), self.scales.tobytes(), known, self.any_scale, self.code_dtype


def is_nan(stored: NDArray[np.uint8], dtype: str) -> Mask:
    """Which bytes of stored codes, scales or values belong to a NaN: (all of them,). A 4-bit code is none."""
    if dtype not in BINARY:
        return _nan_table(dtype)[stored.reshape(-1)]
    kind = np.dtype(BINARY[dtype])
    with np.errstate(invalid="ignore"):  # ml_dtypes widens to ask, and a signalling NaN makes that "invalid"
        return np.repeat(np.isnan(np.ascontiguousarray(stored).view(kind).reshape(-1)), kind.itemsize)


@cache
def _nan_table(dtype: str) -> Mask:
    nan_codes = element(dtype).nan_codes if dtype and element(dtype).bits == 8 else ()
    return np.isin(np.arange(256), nan_codes)


def binary_shape(name: str) -> dict[str, str]:
    """The numbers of a 16- or 32-bit format that edits speak of."""
    info: Any = ml_dtypes.finfo(BINARY[name])  # type: ignore[no-untyped-call]
    return {"low": str(23 - info.nmant), "min_normal": repr(float(info.smallest_normal)), "max": repr(float(info.max))}
