"""How far a right kernel can be off: the model of its roundings, a bound with its proof, and a standard error.

The kernel read the same bytes, so quantization is no excuse: what it may differ by is its own rounding. u is the unit
roundoff of its accumulator, w that of its tiles (K, V, and the query where it was wider), w_P that of the
probabilities that it multiplies V by; t, t_P: half the smallest subnormal of these formats.

    k' = k (1 + w) + t                    K and V of a tile, dequantized and rounded to the operands' dtype
    s' = sum_c q_c k'_c * scale           head_dim products and sums and three factors, in any order
    e' = exp(s' - m)                      within 2^-20 and 3 u |s - m| (an approximate exponential of a rounded
                                          difference, natural or of base 2); m any number that is no key's logit less
    o' = sum_j P(e'_j) v'_j / sum_j e'_j  n = 2 keys + 8 roundings on the way of each term: tiles, rescaling, splits
                                          and their merges included, in any order
    output rounded once to its dtype      after a division by `output_scale`, where it has one

**What moves the weights.** Up to e' everything is an error of the logits, |delta_j| <= D_j. With p = softmax(s), o the
right output and v_j - o taken per channel,

    o^ - o = sum_j p_j e^delta_j (v_j - o) / sum_j p_j e^delta_j
           = sum_j p_j (e^delta_j - 1) (v_j - o) / sum_j p_j e^delta_j

because sum_j p_j (v_j - o) = 0. As |e^delta - 1| <= e^D - 1 and e^delta >= e^-D,

    |o^ - o| <= sum_j p_j (e^D_j - 1) |v_j - o| / sum_j p_j e^-D_j.

It is also at most tanh(omega / 4) (max v - min v) with omega = max delta - min delta <= 2 max D
(`kvformat.attention.certificates.tv_bound`): the smaller one counts. A sink logit is one more key whose v is 0.

**What comes after** multiplies the terms of o^. With P_j <= p_j e^D_j / sum_i p_i e^-D_i the weight that the kernel
has for key j, growth g = ((1 + u) / (1 - u))^n - 1 for the roundings of both sums, and the rounding of P, at most
min(P_j, w_P P_j + t_P), as a number below t_P may become 0:

    |o' - o^| <= sum_j [(P_j + min(P_j, w_P P_j + t_P)) (1 + w) (1 + g) - P_j] |v_j|  + subnormals

The exponentials of a kernel are at most 1 in units of its running maximum, and the largest is 1, so t_P is divided by
their sum, at least max(1, e^(lse - max s - 2 max D)). For float16 it is not divided: there are kernels that round the
normalised probabilities. Subnormal elements of V add t times their weights; a float16 accumulator adds t, beside u, to
every product, factor and exponential that it rounds to a subnormal (sums of its numbers that are subnormal are exact).

**The log-sum-exp** moves by log sum_j p_j e^delta_j, between log sum p e^-D and log sum p e^D, and by the roundings of
the sum, of the logarithm and of the result.

**The standard error** takes each rounding as independent and its relative error as 0.42 u: that of a uniform error
within half an ulp and a mantissa of which each octave is as likely (0.18 = (1/3) (3/4) / (2 ln 2)); partial sums of n
terms as a random walk. It is no bound, and a truncating tensor core is biased: nothing is accused by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.certificates import tv_bound
from kvformat.attention.definition import Attention, Mask, attend
from kvformat.dump.attention import ACCUMULATORS, OPERANDS, OUTPUTS, PROBABILITIES, Rounding

Array = NDArray[Any]

#: how far an approximate exponential is off, relatively
EXPONENTIAL = 2.0**-20
#: exponents beyond this one leave no bound; float64 holds its exponential
_FAR = 300.0
#: the mean square of a relative rounding error in units of the unit roundoff's square
_VARIANCE = 0.18


class Kernel(NamedTuple):
    """The arithmetic of a kernel."""

    accumulator: Rounding
    tiles: Rounding
    #: of the query where it is rounded to the tiles' dtype; both 0 where it is not
    query: Rounding
    probabilities: Rounding
    output: Rounding
    output_scale: float = 1.0

    @classmethod
    def of(cls, settings: dict[str, str], query: str, output: str) -> Kernel:
        """By the settings of a dump and the dtypes of its query and output."""
        operands = settings.get("operands", query)
        tiles = OPERANDS[operands]
        given = OPERANDS[query]
        rounded = Rounding(tiles.unit if tiles.unit > given.unit else 0.0, tiles.tiny if query != operands else 0.0)
        return cls(
            ACCUMULATORS[settings.get("accumulate", "float32")],
            tiles,
            rounded,
            PROBABILITIES[settings.get("probabilities", operands)],
            OUTPUTS[output],
            float(settings.get("output_scale", 1.0)),
        )


@dataclass(frozen=True)
class Allowed:
    """The right attention and how far a right kernel can be off it. Arrays are (q_heads, queries, ...)."""

    exact: Attention
    #: of the output, and of it before the rounding to the output's dtype
    bound: Array
    #: the standard error of the output
    sigma: Array
    #: of the log-sum-exp
    lse_bound: Array


def allowed(
    query: Array, key: Array, value: Array, mask: Mask, scale: float, kernel: Kernel, sinks: Array | None = None
) -> Allowed:
    """Bound and standard error for query (queries, q_heads, head_dim) over finite K and V (keys, kv_heads, ...)."""
    exact = attend(query, key, value, mask=mask, scale=scale, sinks=sinks)
    group, keys = query.shape[1] // key.shape[1], len(key)
    seen = np.isfinite(exact.logits)
    logits = np.where(seen, exact.logits, 0)
    top = np.where(seen, exact.logits, -np.inf).max(axis=2)
    if sinks is not None:
        top = np.maximum(top, np.asarray(sinks, np.float64)[:, None])
    below = np.where(seen, top[..., None] - logits, 0)
    moved_by = np.where(seen, _logit_error(query, key, scale, kernel, seen) + _exponential(below, kernel), 0)
    moved_by = np.minimum(moved_by, _FAR)
    sink_by = np.zeros(top.shape)
    if sinks is not None:
        own = np.asarray(sinks, np.float64)[:, None]
        sink_by = np.minimum(_exponential(top - own, kernel) + 2 * kernel.accumulator.unit * np.abs(own), _FAR)
    p, sink = exact.probabilities, exact.sink
    least = (p * np.exp(-moved_by)).sum(axis=2) + sink * np.exp(-sink_by)
    most = (p * np.exp(moved_by)).sum(axis=2) + sink * np.exp(sink_by)
    weight = p * np.exp(moved_by) / least[..., None]
    largest = np.maximum(moved_by.max(axis=2), sink_by)
    growth = _growth(2 * keys + 8, kernel.accumulator.unit)
    reduced = np.exp(np.clip(exact.lse - top - 2 * largest, 0, _FAR))
    tiny = kernel.probabilities.tiny / (reduced if kernel.probabilities.unnormalised else np.ones(top.shape))
    lost = np.minimum(weight, kernel.probabilities.unit * weight + tiny[..., None])

    size = np.abs(value)
    spread = _spread(p * np.expm1(moved_by), value, exact.output, group)
    spread += (sink * np.expm1(sink_by))[..., None] * np.abs(exact.output)
    ranges, peaks = spans(value, seen[0], group, sink=sinks is not None)
    tv = tv_bound(2 * largest)[..., None]
    moved = np.minimum(spread / least[..., None], tv * ranges)
    mixed = np.minimum(_mixed(weight, size), _mixed(p, size) + tv * peaks)
    after = (mixed + _mixed(lost, size)) * (1 + kernel.tiles.unit) * (1 + growth) - mixed
    # subnormal elements of V: t each, and their weights are at most 1 together, but for their own roundings
    after += kernel.tiles.tiny * (1 + growth) * (1 + kernel.probabilities.unit + keys * tiny[..., None])
    # an exponential of a key, a factor of a split and their sum are off by t each, and so is each product with v
    after += kernel.accumulator.tiny * 4 * (keys + 8) * (peaks + 1) * (1 + growth)
    bound = moved + after
    out, unit = kernel.output_scale, kernel.output.unit
    bound = bound + unit * (np.abs(exact.output) + bound) + kernel.output.tiny * out
    if out != 1:
        bound = bound + 2 * 2.0**-24 * (np.abs(exact.output) + bound)
    roundings = _growth(keys + 8, kernel.accumulator.unit) + 2 * EXPONENTIAL
    lse_bound = np.maximum(np.log(most), -np.log(least)) + roundings
    lse_bound = lse_bound + 4 * kernel.accumulator.unit * (np.abs(exact.lse) + np.abs(top) + lse_bound)
    return Allowed(exact, bound, _sigma(query, key, value, scale, kernel, exact, below, group), lse_bound)


def _logit_error(query: Array, key: Array, scale: float, kernel: Kernel, seen: Array) -> Array:
    """How far rounding moves each logit before the exponential: (q_heads, queries, keys)."""
    group, heads = query.shape[1] // key.shape[1], key.shape[1]
    grouped = np.abs(query).transpose(1, 0, 2).reshape(heads, group * len(query), query.shape[2])
    size = (grouped @ np.abs(key).transpose(1, 2, 0)).reshape(seen.shape) * abs(scale)
    products = 1 + _powers(query.shape[2] + 3, kernel.accumulator.unit)
    dots = (1 + kernel.tiles.unit) * (1 + kernel.query.unit) * products - 1
    of_query = np.abs(query).sum(axis=2).T[:, :, None]
    of_key = np.repeat(np.abs(key).sum(axis=2).T[:, None, :], group, axis=0)
    # (|q| + t')(|k| + t) - |q||k| = t |q| + t' (|k| + t) for each element; t' is 0 where q is not rounded
    tiny = kernel.tiles.tiny * (1 + kernel.query.unit) * of_query
    tiny = tiny + kernel.query.tiny * ((1 + kernel.tiles.unit) * of_key + kernel.tiles.tiny * key.shape[2])
    # t for each product and factor, times the factors that follow; t (|q| + |k|) where a factor is multiplied to q or k
    lost = kernel.accumulator.tiny * max(1.0, abs(scale)) * (query.shape[2] + 3 + of_key + of_query)
    total: Array = dots * size + (tiny * abs(scale) + lost) * products
    return total


def _exponential(below: Array, kernel: Kernel) -> Array:
    error: Array = EXPONENTIAL + 3 * kernel.accumulator.unit * below
    return error


def _powers(count: int, u: float) -> float:
    """(1 + u)^count - 1: the relative error of that many roundings in a row, whatever their number."""
    return float(np.expm1(min(count * np.log1p(u), _FAR)))


def _growth(count: int, u: float) -> float:
    """((1 + u) / (1 - u))^count - 1: of a quotient of two such sums."""
    return float(np.expm1(min(count * (np.log1p(u) - np.log1p(-u)), _FAR)))


def _mixed(weights: Array, value: Array) -> Array:
    """sum_j weights_j value_j: (q_heads, queries, head_size_v)."""
    heads = value.shape[1]
    grouped = weights.reshape(heads, -1, weights.shape[2]) @ value.transpose(1, 0, 2)
    return grouped.reshape(*weights.shape[:2], value.shape[2])


def _spread(weights: Array, value: Array, output: Array, group: int) -> Array:
    """sum_j weights_j |v_j - o|: (q_heads, queries, head_size_v), a row at a time."""
    total = np.empty(output.shape)
    for head, query in np.ndindex(*output.shape[:2]):
        away = np.abs(value[:, head // group] - output[head, query])
        total[head, query] = weights[head, query] @ away
    return total


def spans(value: Array, seen: Array, group: int, *, sink: bool) -> tuple[Array, Array]:
    """Range of v and largest |v| over the seen keys (queries, keys): (q_heads, queries, head_size_v)."""
    rows = [(value[keys].max(axis=0), value[keys].min(axis=0)) for keys in seen]
    ranges = np.stack([np.maximum(t, 0) - np.minimum(b, 0) if sink else t - b for t, b in rows], axis=1)
    peaks = np.stack([np.maximum(top, -bottom) for top, bottom in rows], axis=1)
    return np.repeat(ranges, group, axis=0), np.repeat(peaks, group, axis=0)


def _sigma(
    query: Array, key: Array, value: Array, scale: float, kernel: Kernel, exact: Attention, below: Array, group: int
) -> Array:
    u, p = kernel.accumulator.unit, exact.probabilities
    squares = np.square(query).transpose(1, 0, 2).reshape(key.shape[1], group * len(query), query.shape[2])
    products = (squares @ np.square(key).transpose(1, 2, 0)).reshape(p.shape) * scale**2
    logit = kernel.tiles.unit**2 + kernel.query.unit**2 + u**2 * (1 + query.shape[2] / 2)
    of_query = np.square(query).sum(axis=2).T[:, :, None]
    of_key = np.repeat(np.square(key).sum(axis=2).T[:, None, :], group, axis=0)
    tiny = (kernel.tiles.tiny**2 * of_query + kernel.query.tiny**2 * of_key) * scale**2
    tiny = tiny + kernel.accumulator.tiny**2 * max(1.0, scale**2) * (query.shape[2] + of_query + of_key)
    of_logit = _VARIANCE * (products * logit + np.square(u * below)) + tiny / 3 + (EXPONENTIAL / 4) ** 2
    weights = np.square(p) * of_logit
    o = exact.output
    # sum w (v - o)^2 by three sums; what cancels is far below the other terms
    first = _mixed(weights, np.square(value)) - 2 * o * _mixed(weights, value)
    moved = np.maximum(first + np.square(o) * weights.sum(axis=2)[..., None], 0)
    terms = kernel.probabilities.unit**2 + kernel.tiles.unit**2 + u**2 * (1 + len(key) / 2)
    after = _VARIANCE * terms * _mixed(np.square(p), np.square(value))
    squared = np.repeat(np.square(value).sum(axis=0)[:, None], group, axis=0)
    flushed = kernel.tiles.tiny**2 * np.square(p).sum(axis=2)[..., None] + kernel.probabilities.tiny**2 * squared
    after = after + (flushed + kernel.accumulator.tiny**2 * 2 * (len(key) + squared)) / 3
    rounded = _VARIANCE * np.square(kernel.output.unit * o) + np.square(kernel.output.tiny * kernel.output_scale) / 3
    total: Array = np.sqrt(moved + after + rounded)
    return total
