"""Bit for bit comparison: there is no tolerance in these tests."""

from __future__ import annotations

import numpy as np


def bits(values):
    """The bit patterns of an array of floats."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def assert_same_codes(found, expected, x=None):
    """Every code is the expected one; the message shows the first inputs whose code is not."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    wrong = np.argwhere(found != expected)[:8]
    shown = [
        f"{tuple(map(int, at))}: {'' if x is None else f'{x[tuple(at)]!r} gives '}{found[tuple(at)]:#04x}, "
        f"expected {expected[tuple(at)]:#04x}"
        for at in wrong
    ]
    assert not shown, f"{np.count_nonzero(found != expected)} codes differ: " + "; ".join(shown)


def assert_same_values(found, expected):
    """Every number has the same bits, the signs of zeros included; NaN compares as a class."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(found), nan)
    assert_same_codes(bits(found)[~nan], bits(expected)[~nan])
