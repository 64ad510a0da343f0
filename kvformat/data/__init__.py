"""The real K and V that ship with the package, so that the built-in check judges what a cache really holds."""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

SAMPLE_FILE = "smollm2-135m-kv.npy"
#: the layers of the sample, in the order of its first axis: layer 0 has no attention sink, layer 20 has one
LAYERS = (0, 20)


class Sample(NamedTuple):
    """Key (after RoPE) and value of one layer: bfloat16, (tokens, heads, head_dim). Token 0 begins the text."""

    layer: int
    key: NDArray[ml_dtypes.bfloat16]
    value: NDArray[ml_dtypes.bfloat16]


def sample() -> tuple[Sample, ...]:
    """Key and value of each layer in LAYERS. README.md beside this file says where they come from."""
    with files(__name__).joinpath(SAMPLE_FILE).open("rb") as file:
        bits = np.load(file, allow_pickle=False)  # uint16 (layer, key or value, token, head, dim)
    layers = bits.view(ml_dtypes.bfloat16)
    return tuple(Sample(layer, key, value) for layer, (key, value) in zip(LAYERS, layers, strict=True))
