"""Every recipe of the catalogue differs from its nearest neighbour on the input that its page shows."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from kvformat.recipes import exact
from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.difference import comparable

FOUND = json.loads((Path(__file__).parents[2] / "spec" / "recipes" / "neighbours.json").read_text(encoding="utf-8"))
APART = [each for each in FOUND if each["x"] is not None]
DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def row(entry):
    dtype = np.dtype(DTYPES[entry["dtype"]])
    bits = np.zeros(entry["head_dim"], f"u{dtype.itemsize}")
    for place, pattern in entry["x"].items():
        bits[int(place)] = int(pattern, 16)
    return bits.view(dtype).reshape(1, 1, -1)


def nan_as_one(array, fmt):
    """Bytes in which every NaN is the same."""
    if array.dtype == np.float32:
        return np.where(np.isnan(array), np.float32("nan"), array).tobytes()
    return array.tobytes() if fmt != "e4m3fn" else np.where(array & 0x7F == 0x7F, 0x7F, array).tobytes()


def made(name, entry):
    how = recipe(name)
    scale = None if entry["scale"] is None else float.fromhex(entry["scale"])
    codes, scales, _ = exact.quantize(row(entry), how, scale)
    store = how.inner.store.split()[0] if how.inner else "float32"
    return nan_as_one(codes, how.element), nan_as_one(scales, store)


def test_every_recipe_was_looked_at():
    assert [each["recipe"] for each in FOUND] == [name for name in names() if recipe(name).element is not None]


@pytest.mark.parametrize("entry", APART, ids=lambda entry: entry["recipe"])
def test_the_input_tells_it_from_its_nearest_neighbour_in_the_exact_twin(entry):
    assert made(entry["recipe"], entry) != made(entry["neighbour"], entry)


@pytest.mark.parametrize("entry", FOUND, ids=lambda entry: entry["recipe"])
def test_a_recipe_without_such_an_input_says_why(entry):
    if entry["x"] is None:
        others = [name for name in names() if name not in (entry["recipe"], *entry["same"])]
        tried = {each["recipe"] for each in entry.get("inseparable", [])}
        assert {name for name in others if comparable(recipe(entry["recipe"]), recipe(name))} == tried
