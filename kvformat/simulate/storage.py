"""K and V as a cache gives them back: written to real pages by a recipe, in a layout, and read out of their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.cache import PagedCache
from kvformat.layouts import Layout, layout
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.simulate.debias import Debias

Array = NDArray[Any]


@dataclass(frozen=True)
class Side:
    """How one of K and V is stored: by which recipe, and with which per-tensor scale (None: computed)."""

    recipe: str = "golden/none"
    scale: float | None = None

    @property
    def mode(self) -> str:
        """The mode that the recipe is for."""
        return find_recipe(self.recipe).mode


BF16 = Side()


@dataclass(frozen=True)
class Storage:
    """How a cache stores K and V: the recipe of each, and the layout of its pages."""

    key: Side = BF16
    value: Side = BF16
    layout: str = "vllm-0.33"
    order: str = "NHD"
    block_size: int = 16

    @classmethod
    def of(cls, recipe: str, scale: float | None = None) -> Storage:
        """Both sides by one recipe."""
        return cls(Side(recipe, scale), Side(recipe, scale))

    def layout_for(self, side: Side, heads: int, head_size: int, head_size_v: int) -> Layout:
        """The layout of the pages that a side is stored in, in the mode of its recipe."""
        return layout(
            self.layout,
            mode=side.mode,
            block_size=self.block_size,
            num_kv_heads=heads,
            head_size=head_size,
            head_size_v=head_size_v,
            order=self.order,
        )

    def bytes_per_token(self, heads: int, head_size: int) -> float:
        """Page bytes per token and layer, K and V, from the layouts' own page sizes; a side takes half of its page."""
        pages = [self.layout_for(side, heads, head_size, head_size).page_bytes for side in (self.key, self.value)]
        return sum(pages) / 2 / self.block_size

    def through_pages(self, key: ArrayLike, value: ArrayLike, debias: Debias | None = None) -> tuple[Array, Array]:
        """Key and value (tokens, heads, head size), float32, as they come back from the pages.

        key, value: float32, float16 or bfloat16, as the writer gets them. Two recipes mean two caches, of which one
        gives the key and the other the value. debias: what is taken from the key before, and added after.
        """
        k, v = np.asarray(key), np.asarray(value)
        if debias is not None:
            k, v = debias.remove(k), v.astype(np.float32)
        stored = {side: self._stored(side, k, v) for side in {self.key, self.value}}
        k, v = stored[self.key][0], stored[self.value][1]
        return (k if debias is None else debias.restore(k)), v

    def _stored(self, side: Side, key: Array, value: Array) -> tuple[Array, Array]:
        tokens = len(key)
        made = self.layout_for(side, key.shape[1], key.shape[2], value.shape[2])
        blocks = -(-tokens // self.block_size)
        # blocks in reverse order: a reader that ignores the block table does not go unnoticed
        table = np.arange(blocks)[::-1]
        token = np.arange(tokens)
        slots = table[token // self.block_size] * self.block_size + token % self.block_size
        cache = PagedCache(made, blocks, k_scale=side.scale, v_scale=side.scale)
        cache.write(key, value, slots, recipe=side.recipe)
        return cache.gather(table, tokens)
