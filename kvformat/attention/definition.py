"""Attention as a definition: softmax(q k^T * scale + mask) v, GQA, windows, sink logits; and how far two are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kvformat.errors import InputError

Array = NDArray[Any]


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees. Query i of n stands at key position keys - n + i.

    causal: keys up to its own position. window: of those, the last `window` (its own included), as in sliding-window
    layers; None: all of them.
    """

    causal: bool = True
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise InputError(f"window must be at least 1, the query's own token; got {self.window}")

    def visible(self, queries: int, keys: int) -> NDArray[np.bool_]:
        """Bool (queries, keys). Raises InputError for more queries than keys: the first would stand before key 0."""
        if queries > keys and (self.causal or self.window is not None):
            raise InputError(f"{queries} queries need at least as many keys; got {keys}")
        position = np.arange(keys - queries, keys)[:, None]
        key = np.arange(keys)[None, :]
        seen = np.ones((queries, keys), bool)
        if self.causal:
            seen &= key <= position
        if self.window is not None:
            seen &= key > position - self.window
        return seen


CAUSAL = Mask()


@dataclass(frozen=True)
class Attention:
    """What one attention layer computes, all (q_heads, queries, ...).

    logits: (q_heads, queries, keys), -inf where masked. probabilities: likewise, rows sum to 1 less the share of the
    sink logit. output: (q_heads, queries, head_size_v). lse: (q_heads, queries), log of the sum of exp(logits), sink
    included. sink: (q_heads, queries), the probability that the sink logit takes; 0 without one.
    """

    logits: Array
    probabilities: Array
    output: Array
    lse: Array
    sink: Array


def attend(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    scale: float | None = None,
    mask: Mask = CAUSAL,
    sinks: ArrayLike | None = None,
    visible: NDArray[np.bool_] | None = None,
    dtype: DTypeLike = np.float64,
) -> Attention:
    """Attention of query (queries, q_heads, head_dim) over key (keys, kv_heads, head_dim) and value.

    Query head h reads kv head h // (q_heads / kv_heads), as every GQA engine has it. scale: 1 / sqrt(head_dim) if None.
    sinks: one learned logit per q_head that takes probability and gives no value (gpt-oss). visible: bool
    (kv_heads, queries, keys), of what the mask leaves only these are seen: an evicted cache. dtype: of all arithmetic.

    Raises InputError for shapes that do not fit, and where a query sees no key.
    """
    q, k, v = (np.asarray(x).astype(dtype, copy=False) for x in (query, key, value))
    group = _group(q, k, v)
    seen = np.broadcast_to(mask.visible(len(q), len(k)), (k.shape[1], len(q), len(k)))
    if visible is not None:
        seen = seen & visible
    if not seen.any(axis=2).all():
        raise InputError("a query sees no key: the mask or the evicted cache leaves it none")
    factor = q.dtype.type(1 / np.sqrt(q.shape[2]) if scale is None else scale)
    grouped = q.transpose(1, 0, 2).reshape(k.shape[1], group * len(q), q.shape[2])
    logits = (grouped @ k.transpose(1, 2, 0)).reshape(k.shape[1], group, len(q), len(k)) * factor
    logits = np.where(seen[:, None], logits, -np.inf).reshape(q.shape[1], len(q), len(k))
    sink_logits = None if sinks is None else np.asarray(sinks, q.dtype).reshape(-1, 1, 1)
    if sink_logits is not None and len(sink_logits) != q.shape[1]:
        raise InputError(f"sinks must hold one logit per query head, {q.shape[1]}; got {len(sink_logits)}")
    top = logits.max(axis=2, keepdims=True)
    if sink_logits is not None:
        top = np.maximum(top, sink_logits)
    weights = np.exp(logits - top)
    sink = np.zeros_like(top) if sink_logits is None else np.exp(sink_logits - top)
    total = weights.sum(axis=2, keepdims=True) + sink
    probabilities = weights / total
    mixed = probabilities.reshape(k.shape[1], group * len(q), len(k)) @ v.transpose(1, 0, 2)
    output = mixed.reshape(q.shape[1], len(q), v.shape[2])
    return Attention(logits, probabilities, output, (np.log(total) + top)[..., 0], (sink / total)[..., 0])


def _group(q: Array, k: Array, v: Array) -> int:
    """Query heads per kv head."""
    for name, array in (("query", q), ("key", k), ("value", v)):
        if array.ndim != 3 or not array.size:
            raise InputError(f"{name} must have shape (tokens, heads, head_dim), not empty; got {array.shape}")
    if v.shape[:2] != k.shape[:2]:
        raise InputError(f"value must have the tokens and heads of key, {k.shape[:2]}; got {v.shape[:2]}")
    if q.shape[2] != k.shape[2]:
        raise InputError(f"query and key must have the same head_dim; got {q.shape[2]} and {k.shape[2]}")
    if q.shape[1] % k.shape[1]:
        raise InputError(f"query heads must be a multiple of the {k.shape[1]} kv heads; got {q.shape[1]}")
    return int(q.shape[1] // k.shape[1])


@dataclass(frozen=True)
class RowErrors:
    """How far one attention is from another, per row: all (q_heads, queries).

    logit: root of the variance of the logit errors under the exact probabilities; KL is half its square, to second
    order. spread: the largest logit error less the smallest (omega). tv: total variation of the probabilities. kl:
    KL(exact || other). top1: whether the largest probability is at the same key. output: norm of the output error over
    that of the output.
    """

    logit: Array
    spread: Array
    tv: Array
    kl: Array
    top1: NDArray[np.bool_]
    output: Array

    def means(self) -> dict[str, float]:
        """The mean of each over all rows."""
        return {name: float(np.mean(getattr(self, name))) for name in self.__dataclass_fields__}


def compare(exact: Attention, other: Attention) -> RowErrors:
    """The row errors of `other`. Both must see the same keys; a sink logit counts as a key without logit error."""
    seen = np.isfinite(exact.logits)
    delta = np.where(seen, other.logits, 0) - np.where(seen, exact.logits, 0)
    has_sink = exact.sink.any()
    p = exact.probabilities
    mean = (p * delta).sum(axis=2, keepdims=True)
    variance = (p * (delta - mean) ** 2).sum(axis=2) + exact.sink * mean[..., 0] ** 2
    high, low = np.where(seen, delta, -np.inf).max(axis=2), np.where(seen, delta, np.inf).min(axis=2)
    if has_sink:
        high, low = np.maximum(high, 0), np.minimum(low, 0)
    tv = (np.abs(other.probabilities - p).sum(axis=2) + np.abs(other.sink - exact.sink)) / 2
    # log(p / p~) = lse~ - lse - delta, without a quotient of small numbers
    kl = other.lse - exact.lse - mean[..., 0]
    size = np.linalg.norm(exact.output, axis=2)
    error = np.linalg.norm(other.output - exact.output, axis=2)
    return RowErrors(
        np.sqrt(variance),
        high - low,
        tv,
        np.maximum(kl, 0),
        exact.probabilities.argmax(axis=2) == other.probabilities.argmax(axis=2),
        np.divide(error, size, out=np.zeros_like(error), where=size > 0),
    )
