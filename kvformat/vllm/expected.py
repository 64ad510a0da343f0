"""What the pages of a layer should be: the layout, mode and recipe of its dtype string, backend and vLLM version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvformat.cache_dtypes import CACHE_DTYPES
from kvformat.errors import InputError
from kvformat.recipes import Recipe
from kvformat.recipes.catalogue import recipe as find_recipe


@dataclass(frozen=True)
class Expected:
    """A layout and mode by name; recipe None: that of the layout's engine."""

    layout: str
    mode: str
    recipe: str | None = None

    @property
    def declared(self) -> Recipe | None:
        """The recipe, where one is named. Raises InputError for an unknown name."""
        return None if self.recipe is None else find_recipe(self.recipe)


#: the CPU backend has pages of its own; its layouts name the recipe of their version
_CPU = ("vllm-0.32-cpu", "vllm-0.33-cpu")
_CPU_MODES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("auto", "float16", "bfloat16"), "none"),
        **dict.fromkeys(("fp8", "fp8_e4m3"), "fp8_per_tensor"),
    }
)
#: instruction sets of the CPU backend whose pages are a column-major K and a row-major V
_CPU_PLAIN = ("vec", "vec16")


def expected(dtype: str, version: str, backend: str, isa: str | None = None) -> Expected:
    """What a backend of that vLLM version writes under that --kv-cache-dtype.

    backend: the name of the layer's attention backend, "CPU_ATTN", "FLASH_ATTN", ... isa: what the CPU backend says of
    its layer. Raises InputError where the catalogue does not know, in one line that says what.
    """
    if backend.startswith("CPU"):
        return _on_cpu(dtype, version, isa)
    known = CACHE_DTYPES.get(dtype)
    if known is None or known.layout is None or known.recipe is None:
        raise InputError(f"no layout or recipe describes --kv-cache-dtype {dtype}")
    if (found := _release(version)) and found < (0, 33):
        raise InputError(f"the catalogue has {backend}'s pages of vLLM 0.33; this is {version}")
    recipe = "vllm-0.33/triton/fp8_per_tensor" if "fp8" in dtype and backend.startswith("TRITON") else known.recipe
    mode = recipe.rpartition("/")[2]
    return Expected(known.layout, mode, recipe)


def _on_cpu(dtype: str, version: str, isa: str | None) -> Expected:
    if isa is not None and isa not in _CPU_PLAIN:
        raise InputError(
            f"the CPU backend's pages of isa {isa} are not in the catalogue; it has {', '.join(_CPU_PLAIN)}"
        )
    if dtype not in _CPU_MODES:
        raise InputError(f"no recipe describes the CPU backend's --kv-cache-dtype {dtype}")
    found = _release(version)
    if found is None or found < (0, 32):
        raise InputError(f"the catalogue has the CPU backend's pages from vLLM 0.32 on; this is {version}")
    return Expected(_CPU[found >= (0, 33)], _CPU_MODES[dtype])


def _release(version: str) -> tuple[int, int] | None:
    """The first two numbers of a version; None where it has none, as a build from source may."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


def unwatched(impl: Any, layer: Any) -> str | None:
    """Why a layer's writes cannot be watched; None where they can."""
    if getattr(impl, "kv_sharing_target_layer_name", None):
        return f"it reads the cache of {impl.kv_sharing_target_layer_name} and writes none"
    if not callable(getattr(impl, "do_kv_cache_update", None)):
        return f"{type(impl).__name__} has no do_kv_cache_update: its writer is fused with something else"
    backend = getattr(layer, "attn_backend", None)
    if getattr(backend, "forward_includes_kv_cache_update", False):
        return f"{type(impl).__name__} writes inside its forward"
    if hasattr(impl, "kv_lora_rank"):
        return f"{type(impl).__name__} writes latents (MLA): its do_kv_cache_update takes other arguments"
    return None
