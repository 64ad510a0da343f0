"""Code against code, bit for bit: there is no tolerance here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.oracle.inputs import NAN_CODES, NAN_INPUT_CODE, is_nan


def differences(found: NDArray, expected: NDArray, x: NDArray) -> str:
    """What differs, in one line per input, the first ten of them; empty where nothing does."""
    found, expected, x = np.atleast_1d(found), np.atleast_1d(expected), np.atleast_1d(x)
    wrong = np.flatnonzero(found != expected)
    if not wrong.size:
        return ""
    width = x.dtype.itemsize * 2
    bits = x.view(f"u{x.dtype.itemsize}")
    lines = [
        f"  {x[i]!s} (0x{int(bits[i]):0{width}x}): found {int(found[i]):#04x}, expected {int(expected[i]):#04x}"
        for i in wrong[:10]
    ]
    return "\n".join([f"{wrong.size} of {x.size} codes differ", *lines])


def assert_same_codes(found: NDArray, expected: NDArray, x: NDArray) -> None:
    """Every code is the expected one, NaN inputs included."""
    assert found.shape == expected.shape == x.shape
    difference = differences(found, expected, x)
    assert not difference, difference


def assert_same_conversion(found: NDArray, authority: NDArray, x: NDArray, name: str, *, nan: bool = True) -> None:
    """Numbers convert alike bit for bit; a NaN becomes kvformat's one code, and some NaN code at the authority.

    `nan=False`: the authority has another policy for NaN inputs, which is then not judged.
    """
    number = ~is_nan(x)
    assert_same_codes(found[number], authority[number], x[number])
    canonical = np.full(np.count_nonzero(~number), NAN_INPUT_CODE[name], np.uint8)
    assert_same_codes(found[~number], canonical, x[~number])
    if nan:
        assert np.isin(authority[~number], NAN_CODES[name]).all(), "the authority's NaN codes are not what we think"


def assert_same_values(found: NDArray, expected: NDArray) -> None:
    """float32 values with the same bits; NaN compares as the class."""
    assert found.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found[~nan].view(np.uint32), expected[~nan].view(np.uint32))
