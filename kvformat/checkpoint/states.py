"""K and V of a model's layers in a file of one's own: safetensors with `layer3.key`, `layer3.value`, ..."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.dump.file import INPUT_DTYPES
from kvformat.errors import InputError

#: layer -> key and value, each (tokens, heads, head size), float32, float16 or bfloat16
States = Mapping[int, tuple[NDArray[Any], NDArray[Any]]]

_NAME = re.compile(r"(?:.*?\.)?layers?\.?(?P<layer>\d+)\.(?P<what>key|value)")


def read_states(path: str | Path) -> States:
    """Read K and V of layers.

    Parameters
    ----------
    path : str or Path
        A safetensors file with tensors `layerN.key` and `layerN.value`, (tokens, heads, head size); other tensors are
        passed over.

    Raises
    ------
    InputError
        For a file that cannot be read, holds no such tensors or one of a pair, and for shapes and dtypes that do not
        fit.

    """
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file
    except ModuleNotFoundError:
        raise InputError("K and V are read from safetensors files; pip install 'kvformat[cli]'") from None
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: cannot be read as safetensors: {error}") from error
    found: dict[int, dict[str, NDArray[Any]]] = {}
    for name, array in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        if array.ndim != 3 or not array.size or array.dtype not in INPUT_DTYPES.values():
            held = f"{name} is {array.dtype} of shape {array.shape}"
            raise InputError(f"{path}: {held}; floats (tokens, heads, dims) are wanted")
        found.setdefault(int(match["layer"]), {})[match["what"]] = array
    if not found:
        raise InputError(f"{path}: holds no layerN.key and layerN.value")
    for layer, pair in found.items():
        if len(pair) != 2 or pair["key"].shape[:2] != pair["value"].shape[:2]:
            raise InputError(f"{path}: layer {layer} must have key and value of the same tokens and heads")
    return {layer: (found[layer]["key"], found[layer]["value"]) for layer in sorted(found)}


def amax(x: NDArray[Any]) -> float:
    """The largest |x| that is finite, 0.0 where there is none."""
    size = np.abs(x.astype(np.float32))
    return float(size[np.isfinite(size)].max(initial=0.0))
