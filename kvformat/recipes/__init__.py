"""Numbers to codes and scales: recipes as programs, the catalogue of them, and the engines that run them."""

from kvformat.recipes.catalogue import recipe as recipe
from kvformat.recipes.program import Level as Level
from kvformat.recipes.program import Program as Program
from kvformat.recipes.program import Recipe as Recipe
