"""Wrong kernels, and which of them the judgement of a dump's attention would see: run on the very dump."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.rounding import Allowed

Array = NDArray[Any]

#: query rows that the wrong kernels are run on, and how many logits these may have
ROWS, LOGITS = 64, 1 << 22
#: how many times the bound a wrong kernel must be off to be caught for certain: it rounds as well, so its output may
#: come nearer by its own bound, which for an output of twice the size is twice as large
_CERTAIN = 3.0


@dataclass(frozen=True)
class Work:
    """What a kernel is given: float64, query (queries, q_heads, head_dim), key and value (keys, kv_heads, ...)."""

    query: Array
    key: Array
    value: Array
    scale: float
    block_size: int
    sinks: Array | None
    right: Allowed

    @property
    def seen(self) -> NDArray[np.bool_]:
        """(queries, keys)."""
        seen: NDArray[np.bool_] = np.isfinite(self.right.exact.logits[0])
        return seen

    @property
    def owner(self) -> Array:
        """The kv head of each query head."""
        heads = self.query.shape[1]
        owner: Array = np.arange(heads) // (heads // self.key.shape[1])
        return owner

    def logits(self, key: Array, owner: Array) -> Array:
        """(q_heads, queries, keys), -inf where masked."""
        dots = [self.query[:, head] @ key[:, own].T for head, own in enumerate(owner)]
        return np.where(self.seen, np.stack(dots) * self.scale, -np.inf)

    def mixed(self, logits: Array, value: Array, owner: Array, sinks: float = 1.0) -> tuple[Array, Array]:
        """Output (q_heads, queries, head_size_v) and log-sum-exp; sinks: how often the sink logit is counted."""
        top = logits.max(axis=2, keepdims=True)
        own = None if self.sinks is None else self.sinks[:, None, None]
        if own is not None:
            top = np.maximum(top, own)
        weights = np.exp(logits - top)
        total = weights.sum(axis=2, keepdims=True)
        if own is not None:
            total = total + sinks * np.exp(own - top)
        p = weights / total
        output = np.stack([p[head] @ value[:, own] for head, own in enumerate(owner)])
        return output, (np.log(total) + top)[..., 0]

    def by(self, logits: Array) -> tuple[Array, Array]:
        """With other logits and all else right."""
        return self.mixed(logits, self.value, self.owner)

    def without(self, dropped: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Without some keys (queries, keys); a query that would see none keeps them."""
        dropped = dropped & ~(dropped | ~self.seen).all(axis=1, keepdims=True)
        return self.by(np.where(dropped, -np.inf, self.right.exact.logits))


Made = tuple[Array, Array | None]


def _zeros(work: Work) -> Made:
    return np.zeros_like(work.right.exact.output), None


def _mean(work: Work) -> Made:
    return work.by(np.where(work.seen, 0.0, -np.inf) * np.ones((work.query.shape[1], 1, 1)))


def _next_value(work: Work) -> Made:
    output, _ = work.mixed(work.right.exact.logits, np.roll(work.value, -1, axis=0), work.owner)
    return output, None


def _next_key(work: Work) -> Made:
    return work.by(work.logits(np.roll(work.key, -1, axis=0), work.owner))


def _other_map(work: Work) -> Made:
    owner = np.arange(work.query.shape[1]) % work.key.shape[1]
    return work.mixed(work.logits(work.key, owner), work.value, owner)


def _dims_scale(work: Work) -> Made:
    return work.by(work.right.exact.logits / (work.scale * work.query.shape[2]))


def _rank(work: Work) -> Array:
    """The place of each seen key, counted from the newest: 0, 1, ...; (queries, keys)."""
    backwards = work.seen[:, ::-1].cumsum(axis=1)[:, ::-1] - 1
    return np.where(work.seen, backwards, -1)


def _no_newest(work: Work) -> Made:
    return work.without(_rank(work) == 0)


def _no_block(work: Work) -> Made:
    rank = _rank(work)
    return work.without((rank >= 0) & (rank < work.block_size))


def _no_oldest(work: Work) -> Made:
    count = work.seen.sum(axis=1, keepdims=True)
    return work.without(_rank(work) >= count - count // 4)


def _key_scale(factor: float) -> Callable[[Work], Made]:
    return lambda work: work.by(work.right.exact.logits * factor)


def _value_scale(factor: float) -> Callable[[Work], Made]:
    return lambda work: (work.right.exact.output * factor, None)


def _base_two(work: Work) -> Made:
    count = work.seen.sum(axis=1, keepdims=True)
    older = _rank(work) >= (count + 1) // 2
    merges = older.any(axis=1)  # a query of one key has nothing to merge
    split = (older | ~merges[:, None], ~older)
    halves = [np.where(half & work.seen, work.right.exact.logits, -np.inf) for half in split]
    parts = [work.mixed(half, work.value, work.owner, sinks=0.0) for half in halves]
    lse = np.stack([part[1] for part in parts])
    if work.sinks is not None:
        lse = np.concatenate([lse, np.broadcast_to(work.sinks[:, None], lse.shape[1:])[None]])
    share = np.exp2(lse - lse.max(axis=0))
    share = share / share.sum(axis=0)
    merged: Array = sum(s[..., None] * part[0] for s, part in zip(share, parts, strict=False))
    return np.where(merges[:, None], merged, work.right.exact.output), None


def _sink(times: float) -> Callable[[Work], Made]:
    return lambda work: work.mixed(work.right.exact.logits, work.value, work.owner, sinks=times)


class Wrong(NamedTuple):
    """A wrong kernel: its name in JSON, what it does, and how."""

    id: str
    sentence: str
    run: Callable[[Work], Made]
    #: only where there are sinks
    sinks: bool = False


WRONG = (
    Wrong("zeros", "an output of zeros", _zeros),
    Wrong("mean_of_v", "the plain mean of V", _mean),
    Wrong("doubled", "the output doubled", lambda work: (2 * work.right.exact.output, None)),
    Wrong("dims_rolled", "dims rolled by one", lambda work: (np.roll(work.right.exact.output, 1, axis=2), None)),
    Wrong("next_v", "V of the next token", _next_value),
    Wrong("next_k", "K of the next token", _next_key),
    Wrong("gqa_map", "query head h reads kv head h % kv_heads", _other_map),
    Wrong("softmax_scale", "softmax scale 1 / head_dim", _dims_scale),
    Wrong("key_dropped", "the newest key dropped", _no_newest),
    Wrong("block_dropped", "the newest block dropped", _no_block),
    Wrong("quarter_dropped", "the oldest quarter dropped", _no_oldest),
    Wrong("k_scale_10", "K scale 10 % too large", _key_scale(1.1)),
    Wrong("k_scale_1", "K scale 1 % too large", _key_scale(1.01)),
    Wrong("v_scale_10", "V scale 10 % too large", _value_scale(1.1)),
    Wrong("v_scale_1", "V scale 1 % too large", _value_scale(1.01)),
    Wrong("base_2_merge", "two splits merged to base 2", _base_two),
    Wrong("sink_twice", "the sink counted twice", _sink(2.0), sinks=True),
    Wrong("no_sink", "the sink left out", _sink(0.0), sinks=True),
)

CAUGHT, MAY_PASS, SAME = "caught", "may pass", "same output"


@dataclass(frozen=True)
class Sight:
    """Whether a wrong kernel would be seen."""

    wrong: Wrong
    #: CAUGHT; MAY_PASS; SAME: what it does leaves this dump's output as it is
    answer: str
    #: the largest |its output - the right one| / bound
    ratio: float


def sights(work: Work, *, lse: bool) -> tuple[Sight, ...]:
    """What would be seen of each wrong kernel; lse: the log-sum-exp is judged as well."""
    found = []
    for wrong in WRONG:
        if wrong.sinks and work.sinks is None:
            continue
        output, own = wrong.run(work)
        exact = work.right.exact
        ratio = _largest(output - exact.output, work.right.bound)
        if lse and own is not None:
            ratio = max(ratio, _largest(own - exact.lse, work.right.lse_bound))
        certain = 1.0 if wrong.run is _zeros else _CERTAIN
        same = wrong.run is not _zeros and ratio == 0
        found.append(Sight(wrong, SAME if same else CAUGHT if ratio > certain else MAY_PASS, ratio))
    return tuple(found)


def _largest(difference: Array, bound: Array) -> float:
    """The largest |difference| / bound; what float64 itself rounds counts as equal."""
    size = np.abs(difference)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(size > 1e-13 * (1 + size), size / bound, 0.0)
    return float(np.nan_to_num(ratio, nan=0.0, posinf=np.inf).max(initial=0.0))
