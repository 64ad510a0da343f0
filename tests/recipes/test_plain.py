"""The NumPy reader gives what the exact twin gives, for every recipe of the catalogue; no kernel is compiled here."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.recipes import exact, plain
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find
from tests.elements.compare import assert_same_codes, assert_same_values
from tests.recipes import adversarial


def read_here(name):
    """Whether the reader takes the recipe itself, instead of leaving it to the engine."""
    recipe = find(name)
    shared = all(level.granularity.name == "per_tensor" for level in recipe.outer)
    return recipe.element is not None and not recipe.prepare and shared and not (recipe.inner and recipe.inner.trials)


@pytest.mark.slow  # the twin takes 0.2 s a recipe
@pytest.mark.parametrize("name", [name for name in names() if read_here(name)])
def test_the_reader_is_the_exact_twin_on_finite_edges(name):
    recipe, x = find(name), adversarial.finite()
    scales = (None, 0.0137) if any(level.may_be_given for level in recipe.levels) else (None,)
    for scale in scales:
        found = plain.quantize(x, recipe, scale=scale)
        codes, stored, shared = exact.quantize(x, recipe, scale)
        assert_same_codes(found.codes.view(np.uint8), codes.view(np.uint8), x)
        (assert_same_values if stored.dtype == np.float32 else assert_same_codes)(found.scales, stored)
        assert_same_values(np.array(found.global_scale), np.array(shared, np.float32))
