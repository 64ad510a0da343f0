"""How many bytes a cache takes: exact integers, from the same layouts that say where every byte lies."""

from kvformat.sizing.config import load_config, parse_config
from kvformat.sizing.models import MODELS, find_model
from kvformat.sizing.plan import Layers, Model, Part, Size, modes_of, size

__all__ = ["MODELS", "Layers", "Model", "Part", "Size", "find_model", "load_config", "modes_of", "parse_config", "size"]
