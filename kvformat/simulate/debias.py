"""Key de-biasing, a recipe modifier: store RoPE(k) - RoPE(b), and add RoPE(b) back exactly as it was taken away.

Models with a bias in the key projection (Qwen2, Qwen2.5) have a few channels whose keys are a constant hundreds of
times the spread of the rest. The constant is known: it is no information, yet it sets the scale of every row. `debias`
quantizes what is left. It is specified in binary32, round to nearest even after each operation:

    cos, sin  the RoPE table of the model, binary32
    c   low half: sub(mul(b_low, cos), mul(b_high, sin)); high half: add(mul(b_high, cos), mul(b_low, sin))
    x'  sub(x, c)          x: the key after RoPE, widened to binary32
    ... the recipe, on x'  ...
    v   add(v', c)         v': what the recipe's value program gives

`b` is a constant of the model or a calibrated mean, binary32 (kv_heads, head_dim); it costs kv_heads * head_dim * 4
bytes per layer, no byte per token, and per element read one addition (RoPE(b) comes from the table that RoPE needs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.errors import InputError
from kvformat.recipes import Recipe
from kvformat.recipes.quantizer import Quantized, checked, quantize
from kvformat.simulate.rope import Rope

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Debias:
    """The constant part of the keys of one layer: bias float32 (kv_heads, head_dim) before RoPE, and the RoPE."""

    bias: Array
    rope: Rope

    def __post_init__(self) -> None:
        if self.bias.ndim != 2 or not np.isfinite(self.bias).all():
            raise InputError(f"a key bias must be finite numbers (kv_heads, head_dim); got shape {self.bias.shape}")

    @classmethod
    def calibrated(cls, key: ArrayLike, rope: Rope, start: int = 0) -> Debias:
        """The mean over tokens of keys (tokens, kv_heads, head_dim) with their RoPE undone."""
        turned = np.asarray(key).astype(np.float64)
        cos, sin = (each.astype(np.float64)[:, None] for each in rope.table(len(turned), turned.shape[2], start))
        low, high = np.split(turned, 2, axis=2)
        straight = np.concatenate([low * cos + high * sin, high * cos - low * sin], axis=2)
        return cls(straight.mean(axis=0).astype(np.float32), rope)

    def constant(self, positions: int, start: int = 0) -> Array:
        """RoPE(b) at positions start, start + 1, ...: float32 (positions, kv_heads, head_dim)."""
        return self.rope.turn(np.broadcast_to(self.bias.astype(np.float32), (positions, *self.bias.shape)), start)

    def remove(self, key: ArrayLike, start: int = 0) -> Array:
        """What is left of a key after RoPE, float32. Raises InputError for a shape that is not the bias's."""
        array = np.asarray(key)
        if array.ndim != 3 or array.shape[1:] != self.bias.shape:
            raise InputError(f"key must have shape (tokens, *{self.bias.shape}), the bias's; got {array.shape}")
        left: Array = array.astype(np.float32) - self.constant(len(array), start)
        return left

    def restore(self, left: ArrayLike, start: int = 0) -> Array:
        """The key, float32, from what the recipe's value program gives."""
        array = np.asarray(left).astype(np.float32)
        key: Array = array + self.constant(len(array), start)
        return key

    def quantize(
        self, key: ArrayLike, recipe: str | Recipe, *, scale: ArrayLike | None = None, start: int = 0
    ) -> Quantized:
        """`kvformat.quantize` of what is left of the key; `restore` takes its `dequantize()` back."""
        return quantize(self.remove(checked(key, "key"), start), recipe, scale=scale)
