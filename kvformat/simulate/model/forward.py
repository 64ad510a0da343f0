"""The forward pass of a decoder in float32, with a hook through which every layer's K and V pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.definition import attend
from kvformat.simulate.model.weights import Model

Array = NDArray[Any]


class Cache(Protocol):
    """What a layer does with its key and value, (tokens, kv_heads, head_dim): gives back what attention reads."""

    def __call__(self, layer: int, query: Array, key: Array, value: Array, /) -> tuple[Array, Array]:
        """Key (after RoPE) and value as the cache returns them; query for those who watch."""


def hidden_states(model: Model, tokens: Array, cache: Cache) -> Array:
    """The normalised last hidden states (tokens, width) of a text that is teacher forced in one pass."""
    x = model.embedding[tokens]
    for layer, block in enumerate(model.blocks):
        x = x + _attention(model, layer, block, _rms_norm(x, block["attention_norm"], model.epsilon), cache)
        x = x + _feed_forward(block, _rms_norm(x, block["feed_norm"], model.epsilon))
    return _rms_norm(x, model.output_norm, model.epsilon)


def log_probabilities(model: Model, hidden: Array) -> Array:
    """Log-probabilities of the next token, float32 (tokens, vocabulary)."""
    logits: Array = hidden @ model.embedding.T
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def _attention(model: Model, layer: int, block: Mapping[str, Array], x: Array, cache: Cache) -> Array:
    heads = {"query": model.q_heads, "key": model.kv_heads, "value": model.kv_heads}
    query, key, value = ((x @ block[name].T).reshape(len(x), count, -1) for name, count in heads.items())
    query, key = model.rope.turn(query), model.rope.turn(key)
    key, value = cache(layer, query, key, value)
    attended = attend(query, key, value, dtype=np.float32).output
    return attended.transpose(1, 0, 2).reshape(len(x), -1) @ block["attended"].T


def _feed_forward(block: Mapping[str, Array], x: Array) -> Array:
    gate = x @ block["gate"].T
    gate *= x @ block["up"].T / (1 + np.exp(-gate))  # SiLU
    return gate @ block["down"].T


def _rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    normal: Array = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(epsilon)) * weight
    return normal
