"""SimulatedCache: a transformers cache that hands attention what a quantized cache would hand it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from transformers import DynamicCache
from transformers.cache_utils import DummyLayer, DynamicLayer, LinearAttentionLayer

from kvformat.cache import PagedCache, Side
from kvformat.dump import Dump
from kvformat.errors import InputError
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Recipe
from kvformat.transformers.error import CacheError
from kvformat.transformers.layer import SimulatedLayer, simulated
from kvformat.transformers.pages import SequencePages, Stored

#: a per-tensor scale: one for all layers, or one per layer
Scales = float | Sequence[float] | Mapping[int, float] | None


class SimulatedCache(DynamicCache):
    """A `Cache` for transformers models: K and V are written to real pages, and attention gets the values read back.

    Pass it as `cache` to a model's forward or `generate`. Everything else is the model's own: positions,
    masks, sliding windows. What a layer keeps beside K and V (recurrent states, an indexer's keys) stays as it is.

    Attention sees what the cache holds once the new tokens are stored, also during a prefill; engines that prefill
    with unquantized K and V differ there.

    Parameters
    ----------
    config : transformers.PreTrainedConfig
        The model's.
    recipe : str or Recipe
        A recipe of the catalogue, or a mode, which stands for its golden recipe.
    key_recipe, value_recipe : str or Recipe, optional
        Instead of `recipe`, for K or V alone.
    layers : mapping of int to str or Recipe, optional
        The recipe of single layers, K and V.
    skip_layers : collection of int
        Layers that are not quantized.
    keep_first, keep_last : int
        So many tokens at the start (attention sinks), and so many at the end, stay as the model gave them. A token is
        quantized once, when it is no longer among the last ones.
    layout : str or mapping, optional
        A layout's name, or arguments of `kvformat.layout` (`name`, `order`, `block_size`, ...). By default the first
        layout of the catalogue that has the recipe's mode and takes the model's heads.
    k_scale, v_scale : float, sequence or mapping, optional
        Per-tensor scales for recipes that have them, for all layers or per layer. Without one, a layer's first write
        computes it from all its tokens, padding included.

    Raises
    ------
    InputError
        For an unknown recipe or layout, an encoder-decoder model, layers that are no layers of the model, and, from the
        model's forward, for heads that the layout cannot hold.

    """

    def __init__(
        self,
        config: Any,
        recipe: str | Recipe,
        key_recipe: str | Recipe | None = None,
        value_recipe: str | Recipe | None = None,
        layers: Mapping[int, str | Recipe] | None = None,
        skip_layers: Collection[int] = (),
        keep_first: int = 0,
        keep_last: int = 0,
        layout: str | Mapping[str, Any] | None = None,
        k_scale: Scales = None,
        v_scale: Scales = None,
    ) -> None:
        if getattr(config, "is_encoder_decoder", False):
            raise InputError(f"{type(config).__name__} is an encoder-decoder; SimulatedCache knows decoders only")
        for name, count in (("keep_first", keep_first), ("keep_last", keep_last)):
            if count != int(count) or count < 0:
                raise InputError(f"{name} must be a number of tokens, 0 or more; got {count!r}")
        super().__init__(config=config)
        own = {index: find_recipe(each) for index, each in (layers or {}).items()}
        skipped = set(skip_layers)
        for index in sorted({*own, *skipped}):
            if not 0 <= index < len(self.layers):
                raise InputError(f"layer {index} is no layer of this model, which has 0..{len(self.layers) - 1}")
        both = find_recipe(recipe)
        key = both if key_recipe is None else find_recipe(key_recipe)
        value = both if value_recipe is None else find_recipe(value_recipe)
        chosen = {"name": layout} if isinstance(layout, str) else dict(layout or {})
        for index, layer in enumerate(self.layers):
            if index in skipped or isinstance(layer, DummyLayer) or not isinstance(layer, DynamicLayer):
                _check_known(index, layer)
                continue
            sides = (own[index], own[index]) if index in own else (key, value)
            scales = (_scale_of("k_scale", k_scale, index), _scale_of("v_scale", v_scale, index))
            self.layers[index] = simulated(layer, Stored(*sides, chosen, *scales), keep_first, keep_last)

    def caches(self, layer: int) -> dict[Side, PagedCache]:
        """The paged caches of a layer, by side; one and the same where K and V have one recipe."""
        _, pages = self._layer(layer)
        return {"k": pages.pool("k"), "v": pages.pool("v")}

    def pages(self, layer: int, side: Side | None = None) -> NDArray[np.uint8]:
        """The pages of a layer, uint8 (blocks, page bytes): block i of sequence b is row i * batch + b.

        Parameters
        ----------
        layer : int
            The layer.
        side : {"k", "v"}, optional
            Which of the two pools is meant; needed where K and V have different recipes.

        """
        held = self.caches(layer)
        if side is None and held["k"] is not held["v"]:
            raise InputError(f"K and V of layer {layer} have different recipes and pages of their own: name the side")
        return held[side or "k"].pages

    def dump(self, layer: int, side: Side | None = None) -> Dump:
        """What the layer was given and the pages it wrote, as `kvformat.check` takes it; tokens kept are padding."""
        held, _ = self._layer(layer)
        pool = self.caches(layer)[side or "k"]
        pages = self.pages(layer, side)
        keys, values, slots = held.given_tokens()
        scales = {"k_scale": pool.k_scale, "v_scale": pool.v_scale} if pool.recipe.outer else {}
        return Dump.from_arrays(
            keys, values, pages, slots, layout=pool.layout, recipe=pool.recipe, producer="SimulatedCache", **scales
        )

    def error(self, layer: int) -> CacheError:
        """How far what attention sees is from what the model gave, for the tokens of a layer that are held."""
        held, _ = self._layer(layer)
        return held.error()

    @property
    def simulated_layers(self) -> tuple[int, ...]:
        """The layers whose K and V go through pages."""
        return tuple(index for index, layer in enumerate(self.layers) if isinstance(layer, SimulatedLayer))

    def _layer(self, index: int) -> tuple[SimulatedLayer, SequencePages]:
        if index not in self.simulated_layers:
            raise InputError(f"layer {index} is not simulated; these are: {', '.join(map(str, self.simulated_layers))}")
        layer: SimulatedLayer = self.layers[index]
        if layer.pages is None:
            raise InputError(f"layer {index} has no pages yet: the model has not run")
        return layer, layer.pages


def _check_known(index: int, layer: Any) -> None:
    """A layer that is left as it is: skipped, without K and V, or of a kind that keeps a state instead of tokens."""
    if not isinstance(layer, (DummyLayer, DynamicLayer, LinearAttentionLayer)):
        raise InputError(f"layer {index} of this model has a cache of a kind not known here: {type(layer).__name__}")


def _scale_of(name: str, given: Scales, layer: int) -> float | None:
    if given is None or isinstance(given, (int, float, np.floating)):
        return None if given is None else float(given)
    try:
        return float(given[layer])
    except (LookupError, TypeError) as error:
        raise InputError(f"{name} has no scale for layer {layer}") from error
