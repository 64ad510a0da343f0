"""What is tried: every fault by its id, and the recipes that a dump may be of besides the one that it declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvformat.diagnose import arithmetic, content, elsewhere, geometric, scales
from kvformat.diagnose.fault import Fault, Kind, Variant, table
from kvformat.elements.formats import element
from kvformat.modes import MODES
from kvformat.modes import mode as find_mode
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.difference import comparable
from kvformat.recipes.program import Recipe

#: in the order in which they are tried: of two that explain the same bytes, the first is named first
FAULTS: Mapping[str, Fault] = table(
    (*content.FAULTS, *arithmetic.FAULTS, *scales.FAULTS, *geometric.FAULTS, *elsewhere.FAULTS)
)


def variants(mode: str, *kinds: Kind) -> Iterator[tuple[Fault, Variant]]:
    """Every variant of every fault of these kinds that can occur in a mode."""
    for fault in FAULTS.values():
        if fault.kind in kinds:
            for variant in dict.fromkeys(each for name in kin(mode) for each in fault.variants_in(name)):
                yield fault, variant


def kin(name: str) -> tuple[str, ...]:
    """The modes whose faults can occur in a mode: itself, and those with the same kinds of codes and of scales."""
    if name in MODES:
        return (name,)
    kind = find_mode(name)
    codes = {"int8": "int8_per_token_head", "int4": "int8_per_token_head", "e2m1fn": "nvfp4"}
    of_codes = codes.get(kind.element or "", "fp8_per_token_head" if kind.page_scale else "fp8_per_tensor")
    packed = kind.element is not None and element(kind.element).bits == 4
    blocks = kind.page_scale not in (None, "float32")
    return tuple(dict.fromkeys((name, of_codes, *(("nvfp4",) if packed or blocks else ()))))


def rivals(declared: Recipe, dtype: str) -> Iterator[Recipe]:
    """The other recipes of the catalogue that fill the same bytes of a page, for an input of that dtype."""
    for recipe in map(find_recipe, names()):
        outer = [level.granularity.name for level in recipe.outer]
        fits = recipe.one_scale_a_group and outer in ([], ["per_tensor"])
        if recipe.name != declared.name and fits and _alike(recipe, declared):
            yield recipe.for_input(dtype)


def _alike(recipe: Recipe, declared: Recipe) -> bool:
    if declared.element is None or recipe.element is None or recipe.mode != declared.mode:
        return False
    if element(recipe.element).bits != element(declared.element).bits:
        return False
    return comparable(recipe, declared) or recipe.inner == declared.inner is None
