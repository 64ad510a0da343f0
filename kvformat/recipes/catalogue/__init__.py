"""Every recipe by name, one file per family of engines. A user adds one with `register` or `load_recipe`."""

from __future__ import annotations

from pathlib import Path

from kvformat import modes, toml
from kvformat.errors import InputError, unknown_name
from kvformat.modes import MODES
from kvformat.recipes.catalogue import (
    compressed_tensors,
    flashinfer,
    ggml,
    golden,
    laptops,
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
    ggml,
    laptops,
)
_RECIPES: dict[str, Recipe] = {each.name: each for each in golden.RECIPES}
_RECIPES |= {entry["name"]: parse_recipe(entry) for family in _FAMILIES for entry in family.ENTRIES}

#: what ships with kvformat; a verdict that prints one of these names means these bits
_SHIPPED = dict(_RECIPES)
#: the file that a name was loaded from: an edited file may be loaded again
_LOADED: dict[str, Path] = {}


def names() -> tuple[str, ...]:
    """The names of all recipes, in the order of the catalogue."""
    return tuple(_RECIPES)


def register(recipe: Recipe) -> Recipe:
    """Add a recipe under its name; everything that takes a name then takes it. Raises InputError for a taken name."""
    if _RECIPES.get(named_apart(recipe).name, recipe) != recipe:
        raise InputError(f"a recipe named {recipe.name!r} exists; give yours another name")
    return replace(recipe)


def replace(recipe: Recipe) -> Recipe:
    """Make a recipe known by its name, in place of another one of a user's. Raises InputError for a shipped name.

    A recipe whose mode nobody has described brings its own: what it stores.
    """
    named_apart(recipe)
    if not modes.is_known(recipe.mode):
        modes.define(_mode_of(recipe))
    _RECIPES[recipe.name] = recipe
    return recipe


def defined() -> dict[str, Recipe]:
    """Where recipes are kept: for `kvformat.register`, which takes back a file that does not hold."""
    return _RECIPES


def _mode_of(recipe: Recipe) -> modes.Mode:
    inner = recipe.inner
    return modes.Mode(
        name=recipe.mode,
        element=recipe.element,
        page_scale=None if inner is None else inner.store.split()[0],
        dims_per_scale=0 if inner is None else inner.granularity.dims,
        tensor_scale=bool(recipe.outer),
    )


def named_apart(recipe: Recipe) -> Recipe:
    """The recipe, whose name is its own. Raises InputError where a shipped recipe, or a mode, has that name."""
    if recipe.name in MODES or _SHIPPED.get(recipe.name, recipe) != recipe:
        raise InputError(f"a recipe named {recipe.name!r} ships with kvformat; give yours another name")
    return recipe


def load_recipe(path: str | Path) -> Recipe:
    """The recipe in a TOML file, registered under its name, which dumps and `recipe` then know.

    The same file may be loaded again after a change. Raises InputError, naming the file, where it cannot be read, is
    malformed, or has the name of another recipe.
    """
    source = Path(path).resolve()

    def registered(described: dict[str, object]) -> Recipe:
        found = named_apart(parse_recipe(described))
        if _LOADED.get(found.name) == source:
            del _RECIPES[found.name]
        _LOADED[register(found).name] = source
        return found

    return toml.read(path, registered)


def recipe(name: str | Recipe) -> Recipe:
    """The recipe of that name, or in that `.toml` file; a mode name stands for its golden recipe.

    A mode of one's own stands for the first recipe that has it.

    Raises InputError, naming the close names.
    """
    if isinstance(name, Recipe):
        return name
    if name.endswith(".toml"):
        return load_recipe(name)
    if name in MODES:
        name = f"golden/{name}"
    if name not in _RECIPES and modes.is_users(name):
        name = next((each.name for each in _RECIPES.values() if each.mode == name), name)
    if name not in _RECIPES:
        raise unknown_name("recipe", name, (*_RECIPES, *MODES))
    return _RECIPES[name]
