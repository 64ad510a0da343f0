"""Pages that a recipe of the catalogue wrote are diagnosed as it, from random and real K and V, and from a probe."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from kvformat import Dump, diagnose, layout
from kvformat.cache import quantize_for, store
from kvformat.data import sample
from kvformat.diagnose.probe import probe
from kvformat.modes import MODES
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.difference import search
from kvformat.recipes.normal import normal
from kvformat.verify.compare import check
from kvformat.verify.identify import as_given

EXACT = [
    name for name in names()
    if recipe(name).mode in MODES and recipe(name).element == MODES[recipe(name).mode].element
    and not is_approximate(recipe(name)) and recipe(name).mode != "none"
]  # fmt: skip
#: one for each kind of arithmetic, without a kernel for each recipe of the catalogue
#: modelopt: on these inputs its bytes are golden's, and so are those of so many faults that it was once crowded out
FEW = (
    "golden/int8_per_token_head",
    "vllm-0.33/csrc-reciprocal/fp8_per_tensor",
    "torchao-0.18/nvfp4",
    "modelopt-0.47/nvfp4",
)


def random_inputs():
    rng = np.random.default_rng(7)
    sizes = 2.0 ** rng.integers(-6, 7, (2, 64, 3, 1))
    key, value = (rng.normal(size=(2, 64, 3, 64)) * sizes).astype(ml_dtypes.bfloat16)
    return key, value


def real_inputs():
    layer = sample()[1]
    return layer.key[:64], layer.value[:64]


def written(name, key, value, *, slots=None, made=None, scales=(None, None)):
    """A dump that declares the golden recipe, its pages written by another one."""
    how = recipe(name)
    golden = recipe(f"golden/{how.mode}")
    made = made or layout(
        "vllm-0.33", mode=how.mode, block_size=16, num_kv_heads=key.shape[1], head_size=key.shape[2]
    )  # fmt: skip
    slots = np.arange(len(key)) if slots is None else slots
    pages = np.zeros((int(slots.max()) // made.block_size + 2, made.page_bytes), np.uint8)
    for side, x, scale in (("k", key, scales[0]), ("v", value, scales[1])):
        # a recipe without a scale per tensor leaves what the dump carries unread
        given = as_given(how, golden, scale) if any(level.may_be_given for level in how.outer) else None
        store(made, pages, slots, side, quantize_for(made, x, how, given))
    return Dump.from_arrays(
        key, value, pages, slots, layout=made, recipe=golden.name, k_scale=scales[0], v_scale=scales[1]
    )  # fmt: skip


def named(*explanations):
    """The recipes without a fault that explain all bytes: of both sides, or of one where the other is as declared."""
    plain = (member.recipe.split(" and ") for each in explanations for member in each.members if not member.faults)
    return {recipe for sides in plain for recipe in sides if len(sides) == 1 or not recipe.startswith("golden/")}


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [random_inputs, real_inputs])
@pytest.mark.parametrize("name", FEW)
def test_a_few_recipes_are_diagnosed_as_themselves(name, inputs):
    is_diagnosed_as_itself(name, inputs)


@pytest.mark.exhaustive
@pytest.mark.parametrize("inputs", [random_inputs, real_inputs])
@pytest.mark.parametrize("name", EXACT)
def test_every_exact_recipe_is_diagnosed_as_itself(name, inputs):
    is_diagnosed_as_itself(name, inputs)


def is_diagnosed_as_itself(name, inputs):
    """It is named first, or, where three bytes or fewer tell it from the declared one, among what explains them all."""
    dump = written(name, *inputs())
    found = diagnose(dump)
    whole = [each for each in found.explanations if each.complete]
    assert name in named(*whole), str(found)
    if check(dump).mismatches > 3:
        assert name in named(found.explanations[0]), str(found)


@cache
def made_probe(mode, dtype):
    return probe(mode, dtype=dtype)


@pytest.mark.slow
def test_a_probe_tells_a_recipe_from_all_others():
    is_alone(FEW[0])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXACT)
def test_a_probe_tells_every_exact_recipe_from_all_that_any_input_tells_it_from(name):
    is_alone(name)


def is_alone(name):
    """In the probes of bfloat16 and float32 together no other recipe remains, but those that no input separates."""
    remaining = None
    for dtype in ("bfloat16", "float32"):
        made = made_probe(recipe(name).mode, dtype)
        scales = made.k_scale, made.v_scale
        dump = written(name, made.key, made.value, slots=made.slot_mapping, made=made.layout, scales=scales)
        found = diagnose(dump)
        assert name in named(found.explanations[0]), str(found)
        plain = {member.recipe for member in found.explanations[0].members if not member.faults}
        both = {each for each in plain if " and " not in each}
        left = both if name in both else named(found.explanations[0])
        remaining = left if remaining is None else remaining & left
    for other in remaining - {name}:
        # a scale that is given means something else to a recipe with another multiplier
        multipliers = [[level.multiplier for level in recipe(each).outer] for each in (name, other)]
        if multipliers[0] != multipliers[1] or is_approximate(recipe(other)):
            continue
        if normal(recipe(other)) != normal(recipe(name)):
            witness, _ = search(recipe(name), recipe(other))
            assert witness is None, f"{other}: {witness}"
