"""How far the K and V that attention sees are from those that the model gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CacheError:
    """The error of one layer.

    tokens: how many tokens of each sequence are held. key, value: float64 (batch, tokens), the error of a token
    relative to its own size, |x' - x| / |x| over heads and dims (0 where both are 0).
    """

    tokens: int
    key: NDArray[np.float64]
    value: NDArray[np.float64]

    @classmethod
    def of(cls, given: tuple[NDArray[Any], ...], seen: tuple[NDArray[Any], ...]) -> CacheError:
        """From arrays (batch, heads, tokens, head size): what the model gave, and what attention sees."""
        key, value = (_relative(one, other) for one, other in zip(given, seen, strict=True))
        return cls(key.shape[1], key, value)

    def __str__(self) -> str:
        parts = (f"{name} {np.sqrt(np.mean(each**2)):.4f}" for name, each in (("K", self.key), ("V", self.value)))
        return f"{self.tokens:,} tokens, root mean square of the relative error per token: {', '.join(parts)}"


def _relative(given: NDArray[Any], seen: NDArray[Any]) -> NDArray[np.float64]:
    x, y = (array.astype(np.float64) for array in (given, seen))
    size = np.sqrt((x**2).sum(axis=(1, 3)))
    off = np.sqrt(((y - x) ** 2).sum(axis=(1, 3)))
    relative: NDArray[np.float64] = np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
    return relative
