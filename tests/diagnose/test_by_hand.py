"""The writers of these tests, without a fault, are right: what they write is diagnosed as declared."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat import check, diagnose
from tests.diagnose import by_hand
from tests.diagnose.by_hand import MODES, dump_of, rows, spread, write

GIVEN = {"fp8_per_tensor": (0.0625, 0.0371), "nvfp4": (0.5, 0.01171875)}


def without_nan(x, mode):
    # golden stores a NaN of int8 and nvfp4 in the scale, which these writers do not
    if mode in ("int8_per_token_head", "nvfp4"):
        x[np.isnan(x)] = 1
    return x


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("mode", MODES)
def test_a_right_writer_holds_and_is_diagnosed_as_declared(mode, order):
    key, value = (without_nan(rows(mode, seed), mode) for seed in (1, 2))
    pages = spread(mode, [write(mode, key), write(mode, value)], order=order)
    dump = dump_of(mode, key, value, pages, order=order)
    assert check(dump).ok
    found = diagnose(dump)
    assert (found.status, found.explanations[0].faults) == (0, ())
    assert found.explanations[0].explained == found.explanations[0].total > 0


@pytest.mark.parametrize("mode", ["fp8_per_tensor", "nvfp4"])
def test_a_right_writer_with_given_scales_holds(mode):
    scales = GIVEN[mode]
    key, value = (without_nan(rows(mode, seed, scale=scale), mode) for seed, scale in zip((1, 2), scales, strict=True))
    sides = [write(mode, x, given=scale) for x, scale in zip((key, value), scales, strict=True)]
    dump = dump_of(mode, key, value, spread(mode, sides), k_scale=scales[0], v_scale=scales[1])
    assert check(dump).ok
    assert diagnose(dump).ok


def test_the_tables_of_these_writers_are_the_casts_of_ml_dtypes():
    x = np.random.default_rng(0).normal(size=1 << 12).astype(np.float32) * 100
    assert np.array_equal(by_hand.e4m3(x), np.clip(x, -448, 448).astype(by_hand.E4M3).view(np.uint8))
