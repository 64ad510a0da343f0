"""The borders: inputs lie where a recipe's codes change, and there a reciprocal is no division."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat.fuzz.boundary import Borders, special_rows, stepped
from kvformat.fuzz.strategies import DTYPE_IDS, DTYPES
from kvformat.recipes import plain, recipe

MODES = ("fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")


def codes(x, how, scale=None):
    return plain.quantize(x, how, scale=scale).codes


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("mode", MODES)
def test_most_elements_are_within_two_steps_of_another_code(mode, dtype):
    how = recipe(mode)
    borders = Borders(how, np.random.default_rng(1))
    near = total = 0
    for _ in range(12):
        x = borders.tensor((4, 1, 64), dtype)
        inner = np.isfinite(x) & (x != 0) & (np.abs(x) < np.abs(x).max(axis=2, keepdims=True))
        own = codes(x, how)
        changed = np.zeros(x.shape, bool)
        for step in (-3, -2, -1, 1, 2, 3):
            size = stepped(np.abs(x), np.where(inner, step, 0))
            changed |= codes(np.where(x < 0, -size, size).astype(dtype), how) != own
        near += int(np.count_nonzero(changed & inner))
        total += int(np.count_nonzero(inner))
    assert total > 500
    assert near > 0.5 * total


def test_a_reciprocal_shows_at_the_borders_and_hardly_in_random_numbers():
    # bfloat16 inputs and a bfloat16 scale: exact ties are what tells the two apart
    how, other = recipe("fp8_per_tensor"), recipe("vllm-0.33/csrc-reciprocal/fp8_per_tensor")
    generator = np.random.default_rng(3)
    borders = Borders(how, generator)
    differ = {"random": 0, "borders": 0}
    for _ in range(30):
        scale = float(np.float32(generator.uniform(0.01, 1)))
        plain_random = generator.standard_normal((8, 1, 64)).astype(np.float32)
        for name, x in (("random", plain_random), ("borders", borders.tensor((8, 1, 64), np.dtype(np.float32), scale))):
            differ[name] += int(np.count_nonzero(codes(x, how, scale) != codes(x, other, scale)))
    assert differ["borders"] > 100
    assert differ["borders"] > 50 * max(1, differ["random"])


@pytest.mark.parametrize("mode", MODES)
def test_amax_lies_at_powers_of_two_and_beside_them(mode):
    borders = Borders(recipe(mode), np.random.default_rng(4))
    seen = set()
    for _ in range(60):
        x = borders.tensor((2, 1, 16), np.dtype(np.float32))
        tops = np.abs(x).max(axis=2)
        for top in tops[tops > 0]:
            mantissa = int(top.view(np.uint32)) & 0x7FFFFF
            seen |= {{0: 0, 1: 1, 0x7FFFFF: -1}.get(mantissa)}
    assert {0, 1, -1} <= seen


def test_special_rows_hold_what_every_recipe_needs_a_rule_for():
    rows = list(special_rows(np.dtype(np.float32)))
    together = np.concatenate([row.reshape(-1) for row in rows])
    assert np.isnan(together).any()
    assert np.isinf(together).any()
    assert (np.signbit(together) & (together == 0)).any()
    assert (np.abs(together[together != 0]) < 2.0**-126).any()
    assert any(row.shape[0] == 2 for row in rows)
    assert any(row.shape[1] == 2 for row in rows)
    assert any(row.shape[2] == 32 for row in rows)
    assert all(kvf.quantize(row, "nvfp4").codes.shape == row.shape for row in rows)


def test_tensors_are_the_same_for_the_same_seed():
    made = [Borders(recipe("nvfp4"), np.random.default_rng(9)).tensor((2, 2, 32), DTYPES[0]) for _ in range(2)]
    assert made[0].tobytes() == made[1].tobytes()
