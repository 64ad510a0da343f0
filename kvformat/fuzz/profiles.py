"""K and V as real models make them: channel variance, RoPE, outlier channels from a key bias, attention sinks.

The constants follow what is published and measured about LLaMA and Qwen2.5 caches: keys have a few fixed large channels
in the low-frequency RoPE pairs (KIVI, arXiv 2402.02750; "massive values", arXiv 2502.01563), those of Qwen2's edge
layers come from a key bias of hundreds of sigma, and the sink token's key and value are smaller than the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Profile:
    """How one kind of layer is made. All numbers are in units of the cache's own values."""

    name: str
    #: standard deviation of a key channel before the bias, and of a value
    key_sd: float
    value_sd: float
    #: channel pairs with a constant bias, and the range of its amplitude
    bias_pairs: int = 0
    bias: tuple[float, float] = (0.0, 0.0)
    #: base of the RoPE frequencies; 0: no rotation
    theta: float = 1e5
    #: the first token's key and value, relative to the others
    sink: tuple[float, float] = (0.27, 0.22)
    #: MLA: the last quarter of a row is the RoPE part, with this standard deviation
    rope_sd: float = 0.0


_PROFILES = (
    Profile("llama", 1.5, 0.7, 3, (6.0, 13.0)),
    Profile("qwen_mid", 1.8, 0.7, 3, (5.0, 12.0), theta=1e6),
    Profile("qwen_edge", 1.8, 0.3, 1, (150.0, 220.0), theta=1e6),
    Profile("mla", 0.03, 0.03, theta=0.0, sink=(1.0, 1.0), rope_sd=0.5),
)

#: every profile by name
PROFILES: Mapping[str, Profile] = MappingProxyType({profile.name: profile for profile in _PROFILES})


def keys(profile: Profile, generator: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """K (tokens, heads, head_dim), float32."""
    tokens, heads, dims = shape
    channels = np.exp(generator.normal(0, 0.35, (heads, dims)))
    channels /= np.sqrt((channels**2).mean(axis=1, keepdims=True))
    k = profile.key_sd * channels * generator.standard_normal(shape)
    k *= np.exp(generator.normal(0, 0.09, (tokens, heads, 1)))
    k[0] *= profile.sink[0]
    half = dims // 2
    for _ in range(profile.bias_pairs):
        # the low-frequency quarter: those channels keep their value over many positions
        pair = generator.integers(3 * dims // 8, half, heads)
        size, angle = generator.uniform(*profile.bias, heads), generator.uniform(0, 2 * np.pi, heads)
        k[:, np.arange(heads), pair] += size * np.cos(angle)
        k[:, np.arange(heads), pair + half] += size * np.sin(angle)
    if profile.rope_sd:
        k[..., -(dims // 4) :] = profile.rope_sd * generator.standard_normal((tokens, heads, dims // 4))
    return (_rotated(k, profile.theta) if profile.theta else k).astype(np.float32)


def values(profile: Profile, generator: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """V (tokens, heads, head_dim), float32."""
    tokens, heads, dims = shape
    channels = np.exp(generator.normal(0, 0.25, (heads, dims)))
    each = np.exp(generator.normal(0, 0.22, (tokens, heads, 1)))
    v = profile.value_sd * channels * each * generator.standard_normal(shape)
    v[0] *= profile.sink[1]
    return v.astype(np.float32)


def _rotated(x: NDArray[Any], theta: float) -> NDArray[Any]:
    """RoPE in the half-split channel order: pair p is channels p and p + head_dim / 2."""
    half = x.shape[2] // 2
    angle = np.arange(x.shape[0])[:, None] * theta ** (-np.arange(half) / half)
    cosine, sine = np.cos(angle)[:, None], np.sin(angle)[:, None]
    left, right = x[..., :half], x[..., half : 2 * half]
    turned = [left * cosine - right * sine, right * cosine + left * sine, x[..., 2 * half :]]
    return np.concatenate(turned, axis=2)
