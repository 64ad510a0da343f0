"""Rotary position embedding in the half-split channel order, and the keys' constant part under it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True)
class Rope:
    """Channels i and i + head_dim / 2 turn together, by position * theta^(-2 i / head_dim)."""

    theta: float = 10000.0

    def table(self, positions: int, head_dim: int, start: int = 0) -> tuple[Array, Array]:
        """The cos and sin, float32 (positions, head_dim / 2): angles in float64, results rounded to float32."""
        return _table(self.theta, positions, head_dim, start)

    def turn(self, x: ArrayLike, start: int = 0) -> Array:
        """Turn x (tokens, heads, head_dim) to positions start, start + 1, ...; float32, each operation rounded."""
        array = np.asarray(x).astype(np.float32)
        cos, sin = self.table(len(array), array.shape[2], start)
        low, high = np.split(array, 2, axis=2)
        cos, sin = cos[:, None], sin[:, None]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)

    def shift(self, x: ArrayLike, by: int) -> Array:
        """Keys x (tokens, heads, head_dim) that all move by so many positions, as after an eviction before them."""
        array = np.asarray(x).astype(np.float32)
        cos, sin = self.table(1, array.shape[2], by)
        low, high = np.split(array, 2, axis=2)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)


@lru_cache(maxsize=8)
def _table(theta: float, positions: int, head_dim: int, start: int) -> tuple[Array, Array]:
    if head_dim % 2:
        raise InputError(f"RoPE turns pairs of channels: head_dim must be even; got {head_dim}")
    frequency = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    angle = np.arange(start, start + positions, dtype=np.float64)[:, None] * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    for each in (cos, sin):
        each.flags.writeable = False
    return cos, sin
