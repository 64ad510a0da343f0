"""A transformers cache whose K and V go through real pages: any model, any recipe, bit for bit."""

from kvformat.transformers.cache import SimulatedCache as SimulatedCache
from kvformat.transformers.eviction import evicting as evicting
