"""What kvformat is timed against: a loop that only moves the bytes, and torch code for the golden arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray


@njit(parallel=True)
def stream(bits: Any, codes: Any, scales: Any) -> None:
    """Read every input once and write one byte for it, and the row's scales: no arithmetic, a row at a time."""
    group = bits.shape[1] // scales.shape[1]
    for row in prange(bits.shape[0]):
        for i in range(bits.shape[1]):
            codes[row, i] = np.uint8(bits[row, i] >> np.uint16(8))
        for column in range(scales.shape[1]):
            scales[row, column] = bits[row, column * group]


@njit(parallel=True)
def stream_allocating(bits: Any, like: Any, columns: int) -> Any:
    """The same with the output from Numba's own allocator, which the kernel gives no huge pages."""
    codes = np.empty(bits.shape, np.uint8)
    scales = np.empty((bits.shape[0], columns), like.dtype)
    group = bits.shape[1] // columns
    for row in prange(bits.shape[0]):
        for i in range(bits.shape[1]):
            codes[row, i] = np.uint8(bits[row, i] >> np.uint16(8))
        for column in range(columns):
            scales[row, column] = bits[row, column * group]
    return codes, scales


class Streaming:
    """The streaming loop over the rows of x, writing as many bytes as a mode's codes and scales have."""

    def __init__(self, x: NDArray[Any], columns: int, dtype: type[Any]) -> None:
        self.rows: NDArray[Any] = x.view(np.uint16).reshape(-1, x.shape[-1])
        self.columns, self.dtype = columns, dtype
        self.there = self.outputs()
        self.into_memory_that_is_there()  # touches it

    def outputs(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The codes and scales, from the allocator that kvformat's own outputs come from."""
        return np.empty(self.rows.shape, np.uint8), np.empty((len(self.rows), self.columns), self.dtype)

    def __call__(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The loop, its output allocated by NumPy."""
        codes, scales = self.outputs()
        stream(self.rows, codes, scales)
        return codes, scales

    def by_numba(self) -> Any:
        """The loop with Numba's allocator."""
        return stream_allocating(self.rows, np.empty(0, self.dtype), self.columns)

    def into_memory_that_is_there(self) -> None:
        """The loop without an allocation."""
        stream(self.rows, *self.there)


def torch_golden(torch: Any, mode: str) -> Any:
    """golden/fp8_per_token_head or golden/int8_per_token_head as a torch user writes it, special values included."""

    def scale(x: Any, largest: float) -> Any:
        finite = torch.where(torch.isfinite(x), x.abs(), 0.0)
        s = finite.amax(-1, keepdim=True) / largest
        return torch.where(s == 0, 1.0, s)

    def fp8(x: Any) -> Any:
        x = x.float()
        s = scale(x, 448.0)
        return torch.clamp(x / s, -448.0, 448.0).to(torch.float8_e4m3fn), s.squeeze(-1)

    def int8(x: Any) -> Any:
        x = x.float()
        unusable = torch.isnan(x).any(-1, keepdim=True)
        s = torch.where(unusable, float("nan"), scale(x, 127.0))
        q = torch.clamp(torch.round(x / s), -127.0, 127.0)
        return torch.where(unusable, 0.0, q).to(torch.int8), s.squeeze(-1)

    return {"fp8_per_token_head": fp8, "int8_per_token_head": int8}[mode]
