"""What the pages of a layer should be: the layout, mode and recipe of its dtype string, backend and vLLM version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvformat.cache_dtypes import CACHE_DTYPES, CacheDtype
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
_CPU: Mapping[tuple[int, int], str] = MappingProxyType({(0, 32): "vllm-0.32-cpu", (0, 33): "vllm-0.33-cpu"})
_CPU_MODES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("auto", "float16", "bfloat16"), "none"),
        **dict.fromkeys(("fp8", "fp8_e4m3"), "fp8_per_tensor"),
    }
)
#: instruction sets of the CPU backend whose pages are a column-major K and a row-major V
_CPU_PLAIN = ("vec", "vec16")
#: the recipe whose NaN depends on the architecture, and where it does
_NAN_BY_TARGET = (("vllm-0.33/triton/fp8_per_token_head", "sm_89"),)


def expected(dtype: str, version: str, backend: str, isa: str | None = None, gpu: str | None = None) -> Expected:
    """What a backend of that vLLM version writes under that --kv-cache-dtype.

    Parameters
    ----------
    dtype : the string of --kv-cache-dtype
    version : vLLM's
    backend : the name of the layer's attention backend, "CPU_ATTN", "FLASH_ATTN", ...
    isa : what the CPU backend says of its layer
    gpu : the architecture, of `kvformat.cache_dtypes.ARCHITECTURES`; None: not asked

    Raises
    ------
    InputError
        Where the catalogue does not know, in one line that says what.

    """
    if backend.startswith("CPU"):
        return _on_cpu(dtype, version, isa)
    known = CACHE_DTYPES.get(dtype)
    if known is None or known.layout is None or known.recipe is None:
        raise InputError(f"no layout or recipe describes --kv-cache-dtype {dtype}")
    if _release(version) != (0, 33):
        raise InputError(f"the catalogue has {backend}'s pages of vLLM 0.33; this is {version}")
    mode = known.recipe.rpartition("/")[2]
    recipe = f"vllm-0.33/triton/{mode}" if _by_triton(dtype, backend) else known.recipe
    if gpu is not None and mode != "none":
        recipe = _on_gpu(known, recipe, gpu)
    return Expected(known.layout, mode, recipe)


def _by_triton(dtype: str, backend: str) -> bool:
    """Whether the dtype has a writer in CUDA, and the backend takes the one in Triton."""
    return dtype in ("fp8", "fp8_e4m3", "fp8_e5m2") and backend.startswith("TRITON")


def _on_gpu(known: CacheDtype, recipe: str, gpu: str) -> str:
    """The recipe on that architecture. Raises InputError where its writer runs on others only, or was never seen."""
    if gpu.startswith("gfx"):
        # gfx942 stores e4m3fnuz, AITER stores e4m3 under fp8_e5m2: no run was compared with either
        raise InputError(f"the recipes of --kv-cache-dtype {known.name} are those of NVIDIA's GPUs; this is {gpu}")
    lane = recipe.split("/")[1].partition("-")[0]
    where = [each for writer in known.writers if writer.backend == lane for each in writer.architectures]
    if gpu not in where:
        raise InputError(f"{recipe} is written on {', '.join(where)}; this is {gpu}")
    # a NaN is another byte there
    return recipe.replace("/triton/", "/triton-sm89/") if (recipe, gpu) in _NAN_BY_TARGET else recipe


def architecture(capability: tuple[int, int]) -> str:
    """An NVIDIA GPU's family as ARCHITECTURES names it: (8, 6) is sm_80, (8, 9) is sm_89, (10, 3) is sm_100."""
    major, minor = capability
    return "sm_89" if (major, minor) == (8, 9) else f"sm_{major}0"


def _on_cpu(dtype: str, version: str, isa: str | None) -> Expected:
    if isa is not None and isa not in _CPU_PLAIN:
        raise InputError(
            f"the CPU backend's pages of isa {isa} are not in the catalogue; it has {', '.join(_CPU_PLAIN)}"
        )
    if dtype not in _CPU_MODES:
        raise InputError(f"no recipe describes the CPU backend's --kv-cache-dtype {dtype}")
    found = _release(version)
    if found not in _CPU:
        raise InputError(f"the catalogue has the CPU backend's pages of vLLM 0.32 and 0.33; this is {version}")
    return Expected(_CPU[found], _CPU_MODES[dtype])


def _release(version: str) -> tuple[int, int]:
    """The first two numbers of a version; (0, 0) where it has none, as a build from source may."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


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
