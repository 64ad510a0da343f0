"""Eviction as masks: which keys each query still sees under StreamingLLM and H2O, and how it meets quantization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.errors import InputError
from kvformat.recipes import Recipe
from kvformat.recipes.quantizer import Quantized, quantize

Array = NDArray[Any]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Budget:
    """Tokens that stay: the first (StreamingLLM's sinks) or the heaviest (H2O's heavy hitters), and the most recent."""

    kept: int
    recent: int

    def __post_init__(self) -> None:
        if self.kept < 0 or self.recent < 1:
            raise InputError(f"a budget needs at least 1 recent token and no negative number; got {self}")

    @classmethod
    def streaming(cls, total: int) -> Budget:
        """4 sinks, the rest recent. Raises InputError for a budget of less than 1 token."""
        _check_total(total)
        kept = min(4, total - 1)
        return cls(kept, total - kept)

    @classmethod
    def heavy(cls, total: int) -> Budget:
        """Half heavy hitters, half recent, as in the H2O paper."""
        _check_total(total)
        return cls(total // 2, total - total // 2)

    @property
    def total(self) -> int:
        """Tokens in the cache once it is full."""
        return self.kept + self.recent


def _check_total(total: int) -> None:
    if total < 1:
        raise InputError(f"a budget must be at least 1 token; got {total}")


def streaming(tokens: int, budget: Budget) -> Mask:
    """What each query sees: the first `kept` tokens and the last `recent` up to itself; bool (1, tokens, tokens).

    StreamingLLM's streaming_llm/kv_cache.py with start_size and recent_size. It does not depend on the data, so all
    layers and heads evict alike; positions stay those of the text.
    """
    query, key = np.arange(tokens)[:, None], np.arange(tokens)[None, :]
    seen: Mask = (key <= query) & ((key < budget.kept) | (key > query - budget.recent))
    return seen[None]


def h2o(query: ArrayLike, key: ArrayLike, budget: Budget) -> Mask:
    """What each query sees under H2O, greedy: bool (kv_heads, tokens, tokens). query: (tokens, q_heads, head_dim).

    Token by token: it joins the cache, its query attends, every key's score grows by the probability it was given,
    summed over the query heads of a kv head; then, while more than the budget are kept, of those that are not among
    the `recent` last ones the key with the smallest score leaves (the older one of equals), for good. H2O, algorithm 1;
    its reference code (h2o_hf) sums likewise and does the prompt in one step.
    """
    q, k = np.asarray(query, np.float64), np.asarray(key, np.float64)
    tokens, heads, _ = k.shape
    if q.shape[0] != tokens:
        raise InputError(f"H2O needs the query of every token, {tokens}; got {q.shape[0]}")
    group = q.shape[1] // heads
    scale = q.shape[2] ** -0.5
    logits = np.einsum("thgd,shd->htgs", q.reshape(tokens, heads, group, -1), k) * scale
    seen = np.zeros((heads, tokens, tokens), bool)
    for head in range(heads):
        kept, score = np.zeros(tokens, bool), np.zeros(tokens)
        for token in range(tokens):
            kept[token] = True
            seen[head, token] = kept
            row = np.where(kept, logits[head, token], -np.inf)
            weights = np.exp(row - row.max(axis=1, keepdims=True))
            score += (weights / weights.sum(axis=1, keepdims=True)).sum(axis=0)
            if kept.sum() > budget.total:
                old = np.flatnonzero(kept[: token + 1 - budget.recent])
                kept[old[np.argmin(score[old])]] = False
    return seen


def orders(
    x: ArrayLike, kept: ArrayLike, recipe: str | Recipe, scale: float | None = None
) -> tuple[Quantized, Quantized]:
    """Evicted then quantized, and quantized then evicted: K or V of the kept tokens both ways.

    Where no scale spans tokens (per token head, or one that is given) both are equal byte for byte: a token's codes and
    scales are functions of that token alone.
    """
    array, mask = np.asarray(x), np.asarray(kept, bool)
    if not mask.any():
        raise InputError("eviction must leave at least one token")
    first = quantize(array[mask], recipe, scale=scale)
    whole = quantize(array, recipe, scale=scale)
    per_token = whole.recipe.inner is not None
    scales = whole.scales[mask] if per_token else whole.scales
    return first, Quantized(whole.codes[mask], scales, whole.global_scale, whole.recipe)


def same_bytes(a: Quantized, b: Quantized) -> bool:
    """Whether codes, scales and the per-tensor scale are the same bits."""
    pairs = ((a.codes, b.codes), (a.scales, b.scales), (np.asarray(a.global_scale), np.asarray(b.global_scale)))
    return all(x.shape == y.shape and x.tobytes() == y.tobytes() for x, y in pairs)


def protected(stored: Array, original: Array, tokens: ArrayLike) -> Array:
    """Stored rows with those of the protected tokens left as they were: bf16 slots beside quantized pages."""
    rows = np.array(stored, copy=True)
    rows[np.asarray(tokens)] = np.asarray(original)[np.asarray(tokens)]
    return rows
