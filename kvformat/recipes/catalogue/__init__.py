"""Every recipe by name, one file per family of engines. A user adds one with `register`."""

from __future__ import annotations

from kvformat.errors import InputError, unknown_name
from kvformat.modes import MODES
from kvformat.recipes.catalogue import (
    compressed_tensors,
    flashinfer,
    golden,
    lmcache,
    modelopt,
    ocp,
    sglang,
    tensorrt_llm,
    torchao,
    transformer_engine,
    vllm,
    vllm_mla,
)
from kvformat.recipes.entry import parse_recipe
from kvformat.recipes.program import Recipe

_FAMILIES = (
    vllm,
    vllm_mla,
    flashinfer,
    tensorrt_llm,
    transformer_engine,
    torchao,
    modelopt,
    compressed_tensors,
    sglang,
    lmcache,
    ocp,
)
_RECIPES: dict[str, Recipe] = {each.name: each for each in golden.RECIPES}
_RECIPES |= {entry["name"]: parse_recipe(entry) for family in _FAMILIES for entry in family.ENTRIES}


def names() -> tuple[str, ...]:
    """The names of all recipes, in the order of the catalogue."""
    return tuple(_RECIPES)


def register(recipe: Recipe) -> Recipe:
    """Add a recipe under its name; everything that takes a name then takes it. Raises InputError for a taken name."""
    if recipe.name in _RECIPES and _RECIPES[recipe.name] != recipe:
        raise InputError(f"a recipe named {recipe.name!r} exists; give yours another name")
    _RECIPES[recipe.name] = recipe
    return recipe


def recipe(name: str | Recipe) -> Recipe:
    """The recipe of that name; a mode name stands for its golden recipe. Raises InputError, naming the close names."""
    if isinstance(name, Recipe):
        return name
    if name in MODES:
        name = f"golden/{name}"
    if name not in _RECIPES:
        raise unknown_name("recipe", name, (*_RECIPES, *MODES))
    return _RECIPES[name]
