"""Per-tensor scales from the K and V that a model made: by their largest value, a percentile, or the least error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvformat.checkpoint.spellings import SIDES, TEMPLATES, Side
from kvformat.checkpoint.states import States, amax
from kvformat.elements.formats import element
from kvformat.errors import InputError, unknown_name
from kvformat.files import write_whole
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.quantizer import quantize

Array = NDArray[Any]
Method = Literal["amax", "percentile", "error"]
Scales = Mapping[tuple[int, Side], NDArray[np.float32]]

#: a percentile that leaves out one value in ten thousand
PERCENTILE = 99.99
#: the scales that `error` tries: amax / largest times 2^(-step / 8), down to a 16th
_STEPS = np.exp2(-np.arange(33) / 8)
#: values looked at per layer and side; more are taken at equal distances
_SAMPLE = 1 << 18


def _by_amax(x: Array, largest: float, _recipe: str) -> float:
    return amax(x) / largest


def _by_percentile(x: Array, largest: float, _recipe: str) -> float:
    size = np.abs(x.astype(np.float32))
    size = size[np.isfinite(size)]
    return float(np.percentile(size, PERCENTILE)) / largest if size.size else 0.0


def _by_error(x: Array, largest: float, recipe: str) -> float:
    """The scale of those tried whose stored values are nearest to x in the sum of squares; the largest of equals."""
    flat = x.reshape(1, 1, -1)[..., :: max(1, x.size // _SAMPLE)].astype(np.float32)
    flat = flat[:, :, np.isfinite(flat[0, 0])]
    widest = amax(flat) / largest
    if not widest > 0:
        return 0.0
    tried = [np.float32(widest * step) for step in _STEPS if np.float32(widest * step) > 0]
    off = [float(np.square(quantize(flat, recipe, scale=s).dequantize(np.float64) - flat).sum()) for s in tried]
    return float(tried[int(np.argmin(off))])


METHODS: Mapping[str, Callable[[Array, float, str], float]] = MappingProxyType(
    {"amax": _by_amax, "percentile": _by_percentile, "error": _by_error}
)


def calibrate(
    states: States, method: str = "amax", *, per_head: bool = False, recipe: str = "golden/fp8_per_tensor"
) -> Scales:
    """Scales for layers, K and V apart.

    Parameters
    ----------
    states : mapping of int to (key, value)
        What the layers write; see `kvformat.checkpoint.states`.
    method : {"amax", "percentile", "error"}
        amax: no value is clipped. percentile: one in ten thousand is. error: the least sum of squares of what is read
        back, among 33 scales an eighth of an octave apart.
    per_head : bool
        One scale per KV head.
    recipe : str
        Whose scale it is; a recipe of mode fp8_per_tensor.

    Returns
    -------
    mapping of (layer, side) to float32 array
        (1,) or (KV heads,), decode multipliers. 1.0 for K or V that is zero throughout.

    Raises
    ------
    InputError
        For an unknown method, and a recipe of another mode.

    """
    if method not in METHODS:
        raise unknown_name("calibration", method, METHODS)
    how = find_recipe(recipe)
    if how.mode != "fp8_per_tensor" or how.element is None:
        raise InputError(f"recipe {how.name} is for mode {how.mode}; scales are calibrated for fp8_per_tensor")
    largest = float(element(how.element).max)
    made: dict[tuple[int, Side], NDArray[np.float32]] = {}
    for layer, pair in states.items():
        for side, x in zip(SIDES, pair, strict=True):
            parts = [x[:, head] for head in range(x.shape[1])] if per_head else [x]
            found = np.array([METHODS[method](part, largest, how.name) for part in parts], np.float32)
            made[layer, side] = np.where(found > 0, found, np.float32(1))
    return made


def save_scales(scales: Scales, path: str | Path, spelling: str = "attention") -> None:
    """Write scales as a safetensors file, float32, named as an engine's loader expects them.

    spelling: a key of `TEMPLATES`. A single value is written as a scalar, as checkpoints have it.
    """
    if spelling not in TEMPLATES:
        raise unknown_name("spelling", spelling, TEMPLATES)
    from safetensors.numpy import save_file

    named = {
        TEMPLATES[spelling].format(layer=layer, side=side): values if len(values) > 1 else values.reshape(())
        for (layer, side), values in scales.items()
    }
    write_whole(path, lambda finished: save_file(named, finished))
