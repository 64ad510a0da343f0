"""Eviction as masks: which keys each query still sees under StreamingLLM and H2O, and how it meets quantization."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.errors import InputError, unknown_name
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


@dataclass(frozen=True)
class Eviction:
    """A policy, one of POLICIES, and its budget."""

    policy: str
    budget: Budget

    @classmethod
    def of(cls, policy: str, total: int) -> Eviction:
        """A policy with its usual split of so many tokens. Raises InputError for an unknown policy or no token."""
        if policy not in POLICIES:
            raise unknown_name("policy", policy, POLICIES)
        return cls(policy, POLICIES[policy](total))


def _check_total(total: int) -> None:
    if total < 1:
        raise InputError(f"a budget must be at least 1 token; got {total}")


#: the policies, and how each splits a number of tokens
POLICIES: Mapping[str, Callable[[int], Budget]] = MappingProxyType({"streaming": Budget.streaming, "h2o": Budget.heavy})


def streaming(tokens: int, budget: Budget) -> Mask:
    """What each query sees: the first `kept` tokens and the last `recent` up to itself; bool (1, tokens, tokens).

    StreamingLLM's streaming_llm/kv_cache.py with start_size and recent_size. It does not depend on the data, so all
    layers and heads evict alike; positions stay those of the text.
    """
    return streaming_rows(np.arange(tokens), np.arange(tokens), budget)[None]


def streaming_rows(queries: NDArray[np.int64], keys: NDArray[np.int64], budget: Budget) -> Mask:
    """What queries at these positions see of keys at those, under `streaming`: bool (queries, keys)."""
    query, key = queries[:, None], keys[None, :]
    seen: Mask = (key <= query) & ((key < budget.kept) | (key > query - budget.recent))
    return seen


def h2o(query: ArrayLike, key: ArrayLike, budget: Budget) -> Mask:
    """What each query sees under H2O, greedy: bool (kv_heads, tokens, tokens). query: (tokens, q_heads, head_dim).

    Token by token: it joins the cache, its query attends, every key's score grows by the probability it was given,
    summed over the query heads of a kv head; then, if more than the budget are kept, of those that are not among
    the `recent` last ones the key with the smallest score leaves (the older one of equals), for good. H2O, algorithm 1;
    its reference code (h2o_hf) sums likewise and does the prompt in one step.
    """
    q, k = np.asarray(query, np.float64), np.asarray(key, np.float64)
    tokens, heads, _ = k.shape
    if q.shape[0] != tokens:
        raise InputError(f"H2O needs the query of every token, {tokens}; got {q.shape[0]}")
    group = q.shape[1] // heads
    scale = q.shape[2] ** -0.5
    logits = np.einsum("thgd,shd->thgs", q.reshape(tokens, heads, group, -1), k) * scale
    hitters = HeavyHitters(heads, budget)
    return np.stack([hitters.attend(logits[token, :, :, : token + 1], tokens) for token in range(tokens)], axis=1)


class HeavyHitters:
    """H2O's cache of some heads, token by token: which keys are kept, and what probability each was given so far."""

    def __init__(self, heads: int, budget: Budget) -> None:
        self.budget = budget
        #: bool and float64 (heads, tokens so far)
        self.kept = np.zeros((heads, 0), bool)
        self.score = np.zeros((heads, 0))

    def attend(self, logits: NDArray[np.float64], width: int | None = None) -> Mask:
        """The next token joins the cache and attends; then the lightest key leaves, if there is one too many.

        Parameters
        ----------
        logits : float64 array (heads, query heads of each, tokens, this one included)
            -inf where the query does not look anyway.
        width : int
            Of the answer, False from this token on; default: the tokens so far.

        Returns
        -------
        bool array (heads, width)
            The keys that the query saw.

        """
        heads, _, tokens = logits.shape
        self.kept = np.concatenate([self.kept, np.ones((heads, 1), bool)], axis=1)
        self.score = np.concatenate([self.score, np.zeros((heads, 1))], axis=1)
        seen = np.zeros((heads, tokens if width is None else width), bool)
        seen[:, :tokens] = self.kept
        rows = np.where(self.kept[:, None], logits, -np.inf)
        weights = np.exp(rows - rows.max(axis=2, keepdims=True))
        self.score += (weights / weights.sum(axis=2, keepdims=True)).sum(axis=1)
        full = self.kept.sum(axis=1) > self.budget.total
        if full.any():
            old = np.where(self.kept, self.score, np.inf)[full, : tokens - self.budget.recent]
            self.kept[full, old.argmin(axis=1)] = False
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
