"""The bit-exact reference for quantized KV caches: codecs, recipes, page layouts, and the verdict on kernels' bytes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvformat.cache import PagedCache as PagedCache
    from kvformat.cache_dtypes import KVQuantMode as KVQuantMode
    from kvformat.cache_dtypes import mode as mode
    from kvformat.definitions import register as register
    from kvformat.diagnose.probe import probe as probe
    from kvformat.diagnose.search import diagnose as diagnose
    from kvformat.dump import Dump as Dump
    from kvformat.elements.codec import decode as decode
    from kvformat.elements.codec import encode as encode
    from kvformat.elements.formats import ElementFormat as ElementFormat
    from kvformat.elements.formats import element as element
    from kvformat.elements.packing import pack_bits as pack_bits
    from kvformat.elements.packing import pack_nibbles as pack_nibbles
    from kvformat.elements.packing import unpack_bits as unpack_bits
    from kvformat.elements.packing import unpack_nibbles as unpack_nibbles
    from kvformat.errors import InputError as InputError
    from kvformat.fuzz.runner import fuzz as fuzz
    from kvformat.layouts import Layout as Layout
    from kvformat.layouts import layout as layout
    from kvformat.layouts import load_layout as load_layout
    from kvformat.lint.linter import lint as lint
    from kvformat.many import check_files as check_files
    from kvformat.recipes import Recipe as Recipe
    from kvformat.recipes import load_recipe as load_recipe
    from kvformat.recipes import recipe as recipe
    from kvformat.recipes.quantizer import Quantized as Quantized
    from kvformat.recipes.quantizer import quantize as quantize
    from kvformat.tasks.team import parallel as parallel
    from kvformat.verify import check as check

__version__ = "0.1.0"

#: where each public name lives. Nothing is loaded before it is used: numpy alone takes 0.1 s, numba 0.4 s.
_HOMES = {
    "ElementFormat": "kvformat.elements.formats",
    "element": "kvformat.elements.formats",
    "encode": "kvformat.elements.codec",
    "decode": "kvformat.elements.codec",
    "pack_bits": "kvformat.elements.packing",
    "pack_nibbles": "kvformat.elements.packing",
    "unpack_bits": "kvformat.elements.packing",
    "unpack_nibbles": "kvformat.elements.packing",
    "InputError": "kvformat.errors",
    "Recipe": "kvformat.recipes",
    "load_recipe": "kvformat.recipes",
    "load_layout": "kvformat.layouts",
    "register": "kvformat.definitions",
    "KVQuantMode": "kvformat.cache_dtypes",
    "mode": "kvformat.cache_dtypes",
    "recipe": "kvformat.recipes",
    "quantize": "kvformat.recipes.quantizer",
    "Quantized": "kvformat.recipes.quantizer",
    "Layout": "kvformat.layouts",
    "layout": "kvformat.layouts",
    "PagedCache": "kvformat.cache",
    "Dump": "kvformat.dump",
    "check": "kvformat.verify",
    "check_files": "kvformat.many",
    "parallel": "kvformat.tasks.team",
    "diagnose": "kvformat.diagnose",
    "lint": "kvformat.lint",
    "probe": "kvformat.diagnose.probe",
    "fuzz": "kvformat.fuzz",
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604 the names are strings, from the table above


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvformat' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
