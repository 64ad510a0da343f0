"""Whether two engines may share pages: from the configurations of their caches, before a byte is sent.

A prefix hash says which tokens a block holds and not how its bytes are read (`kvformat.prefix.hashes`), and scales per
tensor lie in no page. So the answer needs the recipe, the layout and the scales of both ends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kvformat.cache import check_fits
from kvformat.cache_dtypes import CACHE_DTYPES, mode
from kvformat.conversion import Cache, convert, translation
from kvformat.errors import InputError, unknown_name
from kvformat.layouts import Layout, layout
from kvformat.modes import mode as find_mode
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.normal import normal
from kvformat.recipes.program import Recipe

#: same bytes: one engine's page is the other's. readable: it is read right, and the other one would have written other
#: codes. convertible: every code and scale has its place there. lossy: only by decoding and quantizing again
Verdict = Literal["same bytes", "readable", "convertible", "lossy", "not"]

_LAYOUT_KEYS = ("order", "v_scales", "block_size", "num_kv_heads", "head_size", "head_size_v", "dtype", "page_bytes")
_KEYS = frozenset(_LAYOUT_KEYS) | {"kv_cache_dtype", "recipe", "layout", "k_scale", "v_scale"}
#: what a configuration may say for people
_REMARKS = frozenset({"engine", "engine_version", "model"})


@dataclass(frozen=True)
class CacheConfig:
    """How one engine keeps K and V. k_scale, v_scale: of modes with a scale per tensor, None elsewhere."""

    name: str
    layout: Layout
    recipe: Recipe
    k_scale: float | None = None
    v_scale: float | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any], name: str = "cache") -> CacheConfig:
        """From plain data.

        Parameters
        ----------
        document : mapping
            `kv_cache_dtype` (one of vLLM's strings) or `recipe`, and `layout`, which follow from a dtype string where
            they are not given; `block_size`, `num_kv_heads`, `head_size`; and where they apply `head_size_v`, `order`,
            `v_scales`, `page_bytes`, `dtype`, `k_scale`, `v_scale`. `engine`, `engine_version`, `model` are remarks.
        name : str
            What messages call it.

        Raises
        ------
        InputError
            For an unknown key or name, sizes that the layout does not take, and a scale that is missing or not needed.

        """
        for key in document:
            if key not in _KEYS | _REMARKS:
                raise InputError(f"{name}: {unknown_name('key', key, _KEYS)}")
        recipe, lies = _named(document, name)
        how = find_recipe(recipe)
        sizes = {key: document[key] for key in _LAYOUT_KEYS if document.get(key) is not None}
        try:
            made = layout(lies, mode=how.mode, **sizes)
            check_fits(made, how)
        except (InputError, TypeError) as error:
            raise InputError(f"{name}: {error}") from error
        k_scale, v_scale = (_scale(document, side, how, name) for side in ("k_scale", "v_scale"))
        return cls(name, made, how, k_scale, v_scale)

    @classmethod
    def load(cls, path: str | Path) -> CacheConfig:
        """From a JSON file. Raises InputError, naming the file."""
        try:
            document = json.loads(Path(path).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: cannot be read as JSON: {error}") from error
        if not isinstance(document, dict):
            raise InputError(f"{path}: must be a JSON object; got {type(document).__name__}")
        return cls.of(document, str(path))


@dataclass(frozen=True)
class Compatibility:
    """What a reader of the second configuration can do with pages of the first, and why."""

    verdict: Verdict
    reasons: tuple[str, ...]

    @property
    def status(self) -> int:
        """0: same bytes; 1: anything else."""
        return int(self.verdict != "same bytes")

    def __str__(self) -> str:
        return "\n".join([self.verdict, *(f"  {reason}" for reason in self.reasons)])


def compatible(writer: CacheConfig, reader: CacheConfig) -> Compatibility:
    """Whether pages that `writer` wrote serve an engine of `reader`'s configuration."""
    for name in ("num_kv_heads", "head_size", "head_size_v"):
        ours, theirs = getattr(writer.layout, name), getattr(reader.layout, name)
        if ours != theirs:
            return Compatibility("not", (f"{name} is {ours} and {theirs}: they do not hold the same K and V",))
    one, other = writer.recipe, reader.recipe
    if (one.mode, one.element, one.value) != (other.mode, other.element, other.value):
        said = f"{one.name} stores {one.mode}, {other.name} {other.mode}"
        if one.mode == other.mode:
            said = f"{one.name} and {other.name} read their codes in different ways"
        return _by_format(writer, reader, said)
    scales = [(each.k_scale, each.v_scale) for each in (writer, reader)]
    if scales[0] != scales[1]:
        return Compatibility("lossy", (f"scales per tensor differ: {_both(scales[0])} and {_both(scales[1])}",))
    reasons = () if normal(one) == normal(other) else (_ANOTHER.format(one=one.name, other=other.name),)
    if writer.layout.spec == reader.layout.spec:
        return Compatibility("readable" if reasons else "same bytes", reasons)
    moved = _differing(writer.layout.spec, reader.layout.spec)
    try:
        convert(_empty(writer, reader.layout.block_size), reader.layout)
    except InputError as error:
        return Compatibility("lossy", (moved, str(error), *reasons))
    return Compatibility("convertible", (moved, *reasons))


_ANOTHER = "{one} writes other codes than {other} for some K and V: a hit is not what the reader would have written"


def _by_format(writer: CacheConfig, reader: CacheConfig, said: str) -> Compatibility:
    """Codes of two formats: those of fn and fnuz have counterparts value by value, but for the largest and for -0."""
    try:
        convert(_empty(writer, 1), None, reader.recipe)
        found = translation(writer.recipe, reader.recipe)
    except InputError:
        return Compatibility("lossy", (said,))
    here = found.source
    lost = [code for code in range(here.codes) if found.table[code] < 0 and code not in here.nan_codes]
    if any(abs(here.value(code)) not in (0, here.max) for code in lost):
        return Compatibility("lossy", (said, f"{len(lost)} of {here.codes} codes have no counterpart"))
    return Compatibility("convertible", (said, "each value has its code there, but for -0 and the largest, if met"))


def _empty(config: CacheConfig, block_size: int) -> Cache:
    """Pages of zeros, which convert where any pages could: as many as fill whole blocks of that size."""
    number = lcm(config.layout.block_size, block_size) // config.layout.block_size
    pages = np.zeros((number, config.layout.page_bytes), np.uint8)
    k_scale, v_scale = (None if scale is None else np.float32(scale) for scale in (config.k_scale, config.v_scale))
    return Cache(pages, config.layout, config.recipe, k_scale, v_scale)


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    names = sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
    return "; ".join(f"{name}: {ours.get(name)} and {theirs.get(name)}" for name in names)


def _both(scales: tuple[float | None, float | None]) -> str:
    k_scale, v_scale = (np.float32(scale) for scale in scales if scale is not None)
    return f"k_scale {k_scale!s}, v_scale {v_scale!s}"


def _named(document: Mapping[str, Any], name: str) -> tuple[str, str]:
    """The recipe and the layout: those that are named, or those that follow from the dtype string."""
    recipe, lies = document.get("recipe"), document.get("layout")
    if "kv_cache_dtype" in document:
        dtype = mode(str(document["kv_cache_dtype"]))
        recipe, lies = recipe or dtype.recipe, lies or dtype.layout
        if recipe is None or lies is None:
            raise InputError(f"{name}: no recipe and layout describe {dtype.name} yet; name both")
    if not isinstance(recipe, str) or not isinstance(lies, str):
        known = ", ".join(CACHE_DTYPES)
        raise InputError(f"{name}: needs kv_cache_dtype (one of {known}), or recipe and layout")
    return recipe, lies


def _scale(document: Mapping[str, Any], side: str, how: Recipe, name: str) -> float | None:
    given, wanted = document.get(side), find_mode(how.mode).tensor_scale
    if not wanted:
        if given is not None:
            raise InputError(f"{name}: mode {how.mode} has no {side}; leave it out")
        return None
    text = str(given)
    if given is None or isinstance(given, bool) or not re.fullmatch(r"[0-9.eE+-]+", text):
        raise InputError(f"{name}: mode {how.mode} needs {side}, a number > 0, since no page holds it; got {given!r}")
    value = float(np.float32(text))
    if not 0 < value < float("inf"):
        raise InputError(f"{name}: {side} must be a number > 0; got {text}")
    return value
