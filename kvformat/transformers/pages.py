"""The pages of one layer for a batch of sequences, and which layout can hold what a model gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.cache import PagedCache, Side
from kvformat.errors import InputError
from kvformat.layouts import LAYOUTS, Layout, layout
from kvformat.recipes.program import Recipe

Array = NDArray[Any]

BLOCK_SIZE = 16


@dataclass(frozen=True)
class Stored:
    """How one layer stores K and V.

    key, value: the recipes. layout: the arguments of `kvformat.layout` that the user chose; empty: the first layout of
    the catalogue that has the recipe's mode and takes the model's heads. k_scale, v_scale: per-tensor scales.
    """

    key: Recipe
    value: Recipe
    layout: Mapping[str, Any]
    k_scale: float | None = None
    v_scale: float | None = None


def layout_for(how: Recipe, chosen: Mapping[str, Any], heads: int, head_size: int, head_size_v: int) -> Layout:
    """The layout of the pages of a layer.

    Parameters
    ----------
    how : Recipe
        What is stored; its mode is the layout's.
    chosen : mapping
        Arguments of `kvformat.layout`. Without a `name` the catalogue is searched: layouts whose engine uses this very
        recipe first, then in the catalogue's order.
    heads, head_size, head_size_v : int
        The shape of what the model gives, per token.

    Raises
    ------
    InputError
        Where the chosen layout does not take the shape, or no layout does; the last reason is told.

    """
    shape = {"num_kv_heads": heads, "head_size": head_size, "head_size_v": head_size_v}
    options: dict[str, Any] = {"block_size": BLOCK_SIZE, **chosen, **shape}
    if "name" in options:
        return layout(options.pop("name"), mode=how.mode, **options)
    names = [name for name, entry in LAYOUTS.items() if how.mode in dict(entry.modes)]
    names.sort(key=lambda name: dict(LAYOUTS[name].modes)[how.mode].recipe != how.name)
    reason = f"no layout has mode {how.mode}"
    for name in names:
        try:
            return layout(name, mode=how.mode, **options)
        except InputError as error:
            reason = str(error)
    raise InputError(f"no layout holds {heads} heads of {head_size} (K) and {head_size_v} (V) dims: {reason}")


class SequencePages:
    """The pages of one layer: a pool of blocks that a batch of sequences of equal length shares.

    Block i of sequence b is block i * batch + b of the pool, so that a longer sequence only appends to the pool, and
    choosing sequences (beam search) takes whole columns of it. K and V of different recipes lie in two pools, of which
    one is read for the keys and one for the values.
    """

    def __init__(self, stored: Stored, batch: int, heads: int, head_size: int, head_size_v: int) -> None:
        self.stored = stored
        self.batch = batch
        self.pools: dict[str, PagedCache] = {}
        for how in (stored.key, stored.value):
            made = layout_for(how, stored.layout, heads, head_size, head_size_v)
            given = {"k_scale": stored.k_scale, "v_scale": stored.v_scale} if how.outer else {}
            self.pools.setdefault(how.name, PagedCache(made, batch, **given))

    def pool(self, side: Side) -> PagedCache:
        """The cache that a side is read from."""
        return self.pools[(self.stored.key if side == "k" else self.stored.value).name]

    def slots(self, start: int, stop: int) -> NDArray[np.int64]:
        """The slots of tokens start..stop-1, int64 (batch * tokens): sequence after sequence."""
        size = self.pool("k").layout.block_size
        token = np.arange(start, stop)
        sequence = np.arange(self.batch)[:, None]
        flat: NDArray[np.int64] = ((token // size * self.batch + sequence) * size + token % size).reshape(-1)
        return flat

    def write(self, key: Array, value: Array, start: int) -> tuple[Array, Array]:
        """Store tokens from position `start` on, and read them back.

        Parameters
        ----------
        key, value : array (batch, tokens, heads, head size)
            float32, float16 or bfloat16.
        start : int
            The position of the first token.

        Returns
        -------
        key, value : array
            Of the same shapes and dtypes: the values that a reader of the pages gets.

        """
        stop = start + key.shape[1]
        slots = self.slots(start, stop)
        keys, values = (array.reshape(-1, *array.shape[2:]) for array in (key, value))
        for how in {each.name: each for each in (self.stored.key, self.stored.value)}.values():
            pool = self.pools[how.name]
            self._reserve(pool, stop)
            pool.write(keys, values, slots, recipe=how)
        back = self.pool("k").read("k", slots, key.dtype), self.pool("v").read("v", slots, value.dtype)
        return back[0].reshape(key.shape), back[1].reshape(value.shape)

    def _reserve(self, pool: PagedCache, tokens: int) -> None:
        """Blocks for so many tokens of each sequence; the pool doubles, so that a token costs the same on average."""
        wanted = -(-tokens // pool.layout.block_size) * self.batch
        held = len(pool.pages)
        if wanted > held:
            more = np.zeros((max(wanted, 2 * held) - held, pool.layout.page_bytes), np.uint8)
            pool.pages = np.concatenate([pool.pages, more])

    def select(self, sequences: NDArray[np.int64]) -> None:
        """Go on with these sequences, in this order; one may occur twice. Their blocks are copied."""
        for pool in self.pools.values():
            blocks = pool.pages.reshape(-1, self.batch, pool.layout.page_bytes)
            pool.pages = np.ascontiguousarray(blocks[:, sequences]).reshape(-1, pool.layout.page_bytes)
        self.batch = len(sequences)
