"""A kernel's attention output judged by what its own bytes allow: float64 attention over the pages, and a bound.

The kernel read the same bytes, so quantization is no excuse: what it may differ by is its own rounding. The model of a
kernel that the bound is made of, u the unit roundoff of its accumulator and w that of its operands:

    k' = k (1 + w) + t                 K and V of a tile, dequantized and rounded to the operands' dtype; q where it was
                                       wider. t: half the smallest subnormal, 2^-25 in float16, else too small to count
    s' = sum_c q_c k'_c * scale        head_dim products and sums and three factors, in any order
    p' = exp(s' - m)                   within 2^-20 and 3 u |s - m| (an approximate exponential of a rounded difference)
    o' = sum_j w(p'_j) v'_j / sum p'   2 keys + 8 roundings each: rescaling, splitting and merging included
    output rounded to its dtype

A float16 accumulator adds t, beside u, to every product, factor and exponential that it rounds to a subnormal; sums of
its numbers that are subnormal are exact.

Everything up to p' is an error of the logits, of range omega, and moves the output by at most tanh(omega / 4) times the
range of v (`kvformat.attention.certificates`); what comes after multiplies terms of sum_j p'_j |v_j|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.certificates import UNIT, tv_bound
from kvformat.attention.definition import Mask, attend
from kvformat.cache import PagedCache
from kvformat.dump.attention import ACCUMULATORS, OPERANDS
from kvformat.dump.dump import Dump
from kvformat.errors import InputError
from kvformat.recipes.program import Recipe

Array = NDArray[Any]

_EXPONENTIAL = 2.0**-20
#: half the smallest subnormal of float16: what rounding to it adds where it has no more bits
_TINY = 2.0**-25
#: query rows judged at once times keys: the arrays of (q_heads, rows, keys) then stay below some 100 MiB
_AT_ONCE = 1 << 18


class _Roundings(NamedTuple):
    """The unit roundoffs of a kernel: its accumulator, its tiles, the query where it is rounded to them, its output.

    tiny, tiny_query, tiny_sums: what rounding to a subnormal adds beside them, in tiles, query and accumulator.
    """

    accumulator: float
    tiles: float
    query: float
    output: str
    tiny: float
    tiny_query: float
    tiny_sums: float

    @classmethod
    def of(cls, accumulate: str, operands: str, query: str, output: str) -> _Roundings:
        tiles = OPERANDS[operands]
        tiny = _TINY if operands == "float16" else 0.0
        rounded = tiles if tiles > OPERANDS[query] else 0.0
        tiny_query, tiny_sums = (tiny if query != "float16" else 0.0), (_TINY if accumulate == "float16" else 0.0)
        return cls(ACCUMULATORS[accumulate], tiles, rounded, output, tiny, tiny_query, tiny_sums)


@dataclass(frozen=True)
class Judgement:
    """What was found about the attention output of a dump."""

    compared: int
    wrong: int
    #: the largest |error| / bound, and where: query row, q_head, dim, the output found, the right one and the bound
    worst: float
    first: dict[str, Any] | None
    accumulate: str
    operands: str

    def to_json(self) -> dict[str, Any]:
        """The judgement as plain data."""
        return {
            "compared": self.compared,
            "wrong": self.wrong,
            "worst_error_over_bound": self.worst if np.isfinite(self.worst) else None,
            "first": None if self.first is None else {name: _json(number) for name, number in self.first.items()},
            "accumulate": self.accumulate,
            "operands": self.operands,
        }

    def __str__(self) -> str:
        how = f"{self.operands} operands, {self.accumulate} accumulator"
        if not self.wrong:
            return (
                f"attention output: {self.compared:,} within the bound of {how}; largest error {self.worst:.3f} of it"
            )
        first = self.first or {}
        place = f"query {first['query']}, head {first['head']}, dim {first['dim']}"
        return (
            f"attention output: {self.wrong:,} of {self.compared:,} beyond the bound of {how}; first at {place}:"
            f" {first['found']:.6g}, from the bytes {first['right']:.6g} +- {first['bound']:.2g}"
        )


def _json(number: float) -> float | str:
    """JSON has no NaN and no Inf."""
    return number if math.isfinite(number) else str(number)


def judge(dump: Dump, how: Recipe, scales: dict[Any, np.float32 | None]) -> Judgement:
    """Judge `output` against attention of `query` over the K and V that the pages hold; the dump has both.

    Keys are the tokens that have a slot, in their order; the queries are those of the last tokens, causal.
    """
    assert dump.query is not None
    assert dump.output is not None
    settings = dump.attention
    mask = Mask(window=int(settings["window"]) if "window" in settings else None)
    scale = float(settings.get("softmax_scale", dump.layout.head_size**-0.5))
    accumulate = settings.get("accumulate", "float32")
    operands = settings.get("operands", dump.query.dtype.name)
    roundings = _Roundings.of(accumulate, operands, dump.query.dtype.name, dump.output.dtype.name)
    slots = dump.slot_mapping[dump.slot_mapping >= 0]
    key, value = _read(dump, how, scales, slots)
    total = len(dump.query)
    if total > len(slots):
        raise InputError(f"query holds {total} tokens; only {len(slots)} have a slot")
    _check_reach(dump.query, key, scale)
    wrong, worst = 0, 0.0
    first: dict[str, Any] | None = None
    step = max(1, _AT_ONCE // len(slots))
    for start in range(0, total, step):
        stop = min(start + step, total)
        keys = len(slots) - total + stop
        query, found = (x[start:stop].astype(np.float64) for x in (dump.query, dump.output))
        right, bound = _right(query, key[:keys], value[:keys], mask, scale, roundings)
        with np.errstate(invalid="ignore", divide="ignore"):
            error = np.abs(found - right)
            ratio = np.where(error == 0, 0.0, error / bound)
        ratio = np.where(np.isnan(right) & np.isnan(found), 0.0, np.where(np.isnan(ratio), np.inf, ratio))
        beyond = ratio > 1
        if first is None and beyond.any():
            row, head, dim = (int(i) for i in np.unravel_index(int(np.argmax(beyond)), beyond.shape))
            numbers = (found[row, head, dim], right[row, head, dim], bound[row, head, dim])
            first = {"query": row + start, "head": head, "dim": dim}
            first |= dict(zip(("found", "right", "bound"), map(float, numbers), strict=True))
        wrong, worst = wrong + int(beyond.sum()), max(worst, float(ratio.max()))
    return Judgement(dump.output.size, wrong, worst, first, accumulate, operands)


def _check_reach(query: Array, key: Array, scale: float) -> None:
    """Raises InputError where no output is right: a query that is not finite, or logits that float32 may not hold."""
    q = query.astype(np.float64)
    if not np.isfinite(q).all():
        row, head, dim = (int(i) for i in np.argwhere(~np.isfinite(q))[0])
        raise InputError(f"query {row}, head {head}, dim {dim} is {q[row, head, dim]}; attention needs finite numbers")
    largest = float(np.abs(key, where=np.isfinite(key), out=np.zeros_like(key)).max(initial=0))
    reach = float(np.abs(q).sum(axis=2).max()) * largest * abs(scale)
    if not reach < float(np.finfo(np.float32).max):
        raise InputError(f"logits may reach {reach:.2g}, beyond float32: query and softmax_scale cannot be judged")


def _read(dump: Dump, how: Recipe, scales: dict[Any, np.float32 | None], slots: Array) -> tuple[Array, Array]:
    """K and V of those slots, float64, as a reader of the pages dequantizes them; only blocks in use are read."""
    held = PagedCache(dump.layout, len(dump.pages), k_scale=scales.get("k"), v_scale=scales.get("v"))
    held.pages, held.recipe = dump.pages, how
    size = dump.layout.block_size
    blocks, place = np.unique(slots // size, return_inverse=True)
    rows = place.reshape(-1) * size + slots % size
    key, value = held.gather(blocks, len(blocks) * size, np.float64)
    return key[rows], value[rows]


def _right(
    query: Array, key: Array, value: Array, mask: Mask, scale: float, roundings: _Roundings
) -> tuple[Array, Array]:
    """The right output and the bound on a kernel's error: both (queries, q_heads, head_size_v)."""
    u, w = roundings.accumulator, roundings.tiles
    exact = attend(query, key, value, mask=mask, scale=scale)
    size = attend(np.abs(query), np.abs(key), value, mask=mask, scale=abs(scale)).logits
    group = query.shape[1] // key.shape[1]
    seen = np.isfinite(exact.logits)
    products = 1 + _gamma(query.shape[2] + 3, u)
    dots = (1 + w) * (1 + roundings.query) * products - 1
    below = np.where(seen, exact.logits.max(axis=2, keepdims=True) - exact.logits, 0)
    tiny = (_subnormal(query, key, roundings) * abs(scale) + _flushed(query, key, abs(scale), roundings)) * products
    delta = np.where(seen, dots * np.where(seen, size, 0) + tiny + 3 * u * below + _EXPONENTIAL, 0)
    omega = 2 * delta.max(axis=2)
    ranges, peaks = _spans(value, seen[0], group)
    moved = tv_bound(omega)[..., None] * ranges
    mixed = exact.probabilities.reshape(key.shape[1], group * len(query), len(key)) @ np.abs(value).transpose(1, 0, 2)
    weight = mixed.reshape(exact.output.shape) + tv_bound(omega)[..., None] * peaks
    sums = _gamma(2 * len(key) + 8, u)
    rounding = ((1 + w) ** 2 * (1 + sums) / (1 - sums) - 1) * weight
    # in float16 probabilities below 2^-14 are subnormal, and so are such elements of V, which weigh at most 1 together
    mass = (1 + w) * (1 + len(key) * roundings.tiny) * (1 + sums) / (1 - sums)
    rounding = rounding + roundings.tiny * (len(key) * peaks + mass)
    # an exponential of a key, a factor of a split and their sum are off by t each, and so is each product with v; the
    # largest exponential is 1, so the sum that divides is at least that, but for its own roundings
    keys = len(key) + 8
    rounding = rounding + roundings.tiny_sums * 4 * keys * (peaks + 1) * (1 + sums) / (1 - sums)
    bound = moved + rounding
    smallest = {"float16": _TINY}.get(roundings.output, 2.0**-134)
    bound = bound + UNIT[roundings.output] * (np.abs(exact.output) + bound) + smallest
    return exact.output.transpose(1, 0, 2), bound.transpose(1, 0, 2)


def _subnormal(query: Array, key: Array, roundings: _Roundings) -> Array:
    """What rounding subnormal elements to float16 adds to q.k: (q_heads, queries, keys).

    (|q| + t')(|k| + t) - |q||k| = t |q| + t' (|k| + t) per element; t' is 0 where q is not rounded.
    """
    group = query.shape[1] // key.shape[1]
    of_key = roundings.tiny * (1 + roundings.query) * np.abs(query).sum(axis=2).T[:, :, None]
    size = (1 + roundings.tiles) * np.abs(key).sum(axis=2) + roundings.tiny * key.shape[2]
    total: Array = of_key + roundings.tiny_query * np.repeat(size.T[:, None, :], group, axis=0)
    return total


def _flushed(query: Array, key: Array, scale: float, roundings: _Roundings) -> Array:
    """What subnormal products of a float16 accumulator add to a logit: (q_heads, queries, keys).

    t for each of the products and factors, multiplied by the factors that follow; t (|q| + |k|) where `scale` or an
    element's own scale is multiplied to q or k first.
    """
    group = query.shape[1] // key.shape[1]
    sizes = np.repeat(np.abs(key).sum(axis=2).T[:, None, :], group, axis=0) + np.abs(query).sum(axis=2).T[:, :, None]
    total: Array = roundings.tiny_sums * max(1.0, scale) * (query.shape[2] + 3 + sizes)
    return total


def _gamma(operations: int, u: float) -> float:
    """The relative error of that many roundings in a row; Higham, Accuracy and Stability, lemma 3.1. At most 1/2."""
    if operations * u >= 1 / 3:
        raise InputError(f"{operations} sums with a unit roundoff of {u:.2g} leave no bound on the attention output")
    return operations * u / (1 - operations * u)


def _spans(value: Array, seen: NDArray[np.bool_], group: int) -> tuple[Array, Array]:
    """Range of v and largest |v| over the seen keys: (q_heads, queries, head_size_v)."""
    rows = [(value[keys].max(axis=0), value[keys].min(axis=0)) for keys in seen]
    ranges = np.stack([top - bottom for top, bottom in rows], axis=1)
    peaks = np.stack([np.maximum(top, -bottom) for top, bottom in rows], axis=1)
    return np.repeat(ranges, group, axis=0), np.repeat(peaks, group, axis=0)
