"""Numbers to codes and scales: recipes as programs, the catalogue of them, and the engines that run them."""

from kvformat.recipes.catalogue import load_recipe as load_recipe
from kvformat.recipes.catalogue import recipe as recipe
from kvformat.recipes.catalogue import register as register
from kvformat.recipes.entry import parse_recipe as parse_recipe
from kvformat.recipes.program import Level as Level
from kvformat.recipes.program import Program as Program
from kvformat.recipes.program import Recipe as Recipe
