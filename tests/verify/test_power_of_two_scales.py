"""A power-of-two scale by an approximate logarithm: two numbers are right, everything between them is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.recipes.admissible import within
from kvformat.recipes.catalogue import recipe as find

#: recipe, elements that share a scale
RECIPES = {"vllm-0.33/csrc/fp8_ds_mla": 128, "vllm-0.33/csrc/indexer_k_ue8m0": 128}


def held(name: str, dims: int, amax: float, scale: float) -> bool:
    """Whether the recipe allows this scale of a row whose largest magnitude is amax, whatever its codes."""
    row = np.zeros((1, dims), np.float32)
    row[0, 3] = amax
    how = find(name).for_input("float32")
    scales, _ = within(row, how, {}, np.zeros((1, dims), np.uint8), np.array([[scale]], np.float32))
    return bool(scales.all())


@pytest.mark.parametrize(("name", "dims"), RECIPES.items())
@pytest.mark.parametrize(("amax", "right"), [(448, 1.0), (7, 2.0**-6), (3.5, 2.0**-7), (500, 2.0), (6.5, 2.0**-6)])
@pytest.mark.parametrize("factor", [1.1, 1.5, 1.99])
def test_a_scale_between_two_powers_of_two_is_refused(name, dims, amax, right, factor):
    assert held(name, dims, amax, right)
    assert not held(name, dims, amax, factor * right)


@pytest.mark.parametrize(("name", "dims"), RECIPES.items())
def test_at_an_exact_power_of_two_the_next_one_may_be_stored_and_no_other(name, dims):
    # amax / 448 is 2^0: a logarithm 2 ulp above 0 has the ceiling 1
    assert [held(name, dims, 448, 2.0**e) for e in (-1, 0, 1, 2)] == [False, True, True, False]
    assert [held(name, dims, 500, 2.0**e) for e in (-1, 0, 1, 2)] == [False, False, True, False]
