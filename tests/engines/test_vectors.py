"""Recipes against what their engines left on hard inputs: the engine is not needed, its bytes are committed."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open

from kvformat.recipes import plain
from kvformat.recipes.catalogue import recipe as find
from tests.engines import record
from tests.engines.judging import bits, differing

_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def _cases():
    for path in sorted(record.LOGS.glob("*.safetensors")):
        with safe_open(path, "numpy") as opened:
            for number, case in enumerate(json.loads(opened.metadata()["cases"])):
                name = f"{case['recipe']} {case['dtype']} {case['scale']}".strip()
                yield pytest.param(path, number, case, id=name, marks=_marks(case["recipe"]))


def _marks(name):
    """What the NumPy reader leaves to the engine has to be compiled first."""
    recipe = find(name)
    slow = recipe.prepare or (recipe.inner is not None and recipe.inner.trials)
    return [pytest.mark.slow] if slow else []


@pytest.mark.parametrize(("path", "number", "case"), list(_cases()))
def test_a_recipe_gives_the_bytes_that_its_engine_left(path, number, case):
    with safe_open(path, "numpy") as opened:
        x = opened.get_tensor(f"{number}.x").view(_DTYPES[case["dtype"]])
        codes = opened.get_tensor(f"{number}.codes")
        scales = opened.get_tensor(f"{number}.scales") if f"{number}.scales" in opened.keys() else None  # noqa: SIM118
    recipe = find(case["recipe"])
    scale = np.float32(float.fromhex(case["scale"])) if case["scale"] else None
    with np.errstate(all="ignore"):
        found = plain.quantize(x.reshape(len(x), 1, -1), recipe, scale=scale)
    as_class = case["nan"] == "class"
    stored = codes.reshape(found.codes.shape).view(found.codes.dtype)
    wrong = differing(found.codes, stored, recipe.element, nan_as_class=as_class)
    assert not wrong.any(), _first(wrong, x.reshape(found.codes.shape), found.codes, stored)
    if scales is not None:
        kept = scales.view(found.scales.dtype).reshape(found.scales.shape)
        np.testing.assert_array_equal(bits(found.scales), bits(kept))


def _first(wrong, x, found, stored):
    at = tuple(np.argwhere(wrong)[0])
    return f"{np.count_nonzero(wrong)} codes differ; {at}: x {x[at]!r}, found {found[at]}, the engine has {stored[at]}"
