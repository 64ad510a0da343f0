"""The worst kernels that the model of roundings allows: how near they come to the bound that judges outputs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from kvformat.attention.definition import CAUSAL, Mask
from kvformat.attention.rounding import EXPONENTIAL, Kernel, allowed
from kvformat.dump.attention import ACCUMULATORS, OPERANDS, OUTPUTS, PROBABILITIES

#: what float64 adds to numbers of size 1
FLOAT64 = 1e-12
VARIANTS = 10


@dataclass(frozen=True)
class Case:
    """Query, K and V from a seed, and the arithmetic of a kernel."""

    seed: int
    tokens: int
    dims: int
    query_size: float
    value_size: float
    accumulate: str
    operands: str
    probabilities: str
    output: str
    window: int | None
    sink: bool
    #: how large a part of each rounding is taken; its sign is that which moves the output most
    part: float


@st.composite
def cases(draw):
    operands = draw(st.sampled_from(list(OPERANDS)))
    return Case(
        seed=draw(st.integers(0, 2**32 - 1)),
        tokens=draw(st.integers(1, 40)),
        dims=draw(st.sampled_from([1, 4, 32])),
        query_size=draw(st.sampled_from([0.0, 0.1, 1.0, 5.0])),
        value_size=draw(st.sampled_from([2.0**-24, 1e-3, 1.0, 100.0])),
        accumulate=draw(st.sampled_from(list(ACCUMULATORS))),
        operands=operands,
        probabilities=draw(st.sampled_from([operands, *PROBABILITIES])),
        output=draw(st.sampled_from(list(OUTPUTS))),
        window=draw(st.sampled_from([None, None, 1, 5])),
        sink=draw(st.booleans()),
        part=draw(st.sampled_from([1.0, 1.0, 0.5, -1.0])),
    )


def case_variants(case):
    """Other numbers of the same kind."""
    return [replace(case, seed=case.seed + i) for i in range(VARIANTS)]


def ratios(case):
    """Error over bound of the worst kernel toward each channel: for the output and the log-sum-exp."""
    rng = np.random.default_rng(case.seed)
    query = rng.normal(0, 1, (1, 2, case.dims)) * case.query_size
    key = rng.normal(0, 1, (case.tokens, 1, case.dims))
    value = rng.normal(rng.choice([0, 3]), 1, (case.tokens, 1, 2)) * case.value_size
    sinks = rng.normal(0, 2, 2) if case.sink else None
    settings = {"accumulate": case.accumulate, "operands": case.operands, "probabilities": case.probabilities}
    kernel = Kernel.of(settings, case.operands if case.operands != "tfloat32" else "float32", case.output)
    kernel = kernel._replace(query=kernel.query._replace(unit=0.0, tiny=0.0))
    mask = Mask(window=case.window) if case.window else CAUSAL
    right = allowed(query, key, value, mask, 0.25, kernel, sinks)
    seen = mask.visible(1, case.tokens)[0]
    # all of (head, dim, sign) at once
    heads, dims, signs = (each.reshape(-1) for each in np.meshgrid([0, 1], [0, 1], [1, -1], indexing="ij"))
    sink = np.full(len(heads), -np.inf) if sinks is None else sinks[heads]
    numbers = (query[0, heads], key[seen, 0], value[seen, 0].T[dims], sink)
    output, lse = worst(*numbers, kernel, signs, case.part, case.tokens)
    exact = right.exact
    return {
        "judged output": _over(np.abs(output - exact.output[heads, 0, dims]), right.bound[heads, 0, dims]),
        "judged log-sum-exp": _over(np.abs(lse - exact.lse[heads, 0]), right.lse_bound[heads, 0]),
    }


def _over(error, bound):
    return float((np.maximum(0.0, error - FLOAT64 * np.minimum(1.0, bound * 1e6)) / bound).max())


def worst(query, key, value, sink, kernel, signs, part, keys):
    """Outputs of some channels and their log-sum-exp, each rounding at `part` of its end, so that the output moves.

    query: (channels, dims); key: (keys, dims); value: (channels, keys); sink: (channels,), -inf for none; signs:
    (channels,), the way each output is moved.
    """
    u, tiles, p_format = kernel.accumulator, kernel.tiles, kernel.probabilities
    sign = signs[:, None]
    logits = 0.25 * query @ key.T
    top = np.maximum(logits.max(axis=1), sink)[:, None]
    weights = np.exp(logits - top)
    sink_weight = np.exp(sink[:, None] - top)
    right = (weights * value).sum(axis=1, keepdims=True) / (weights.sum(axis=1, keepdims=True) + sink_weight)
    away = np.where(value >= right, sign, -sign) * part
    # a kernel's own numbers: K rounded, products and their sum, the difference, the exponential
    q, by_dim = query[:, None], away[..., None]
    rounded = key + by_dim * np.sign(q) * (tiles.unit * np.abs(key) + tiles.tiny)
    products = rounded * q * np.exp(by_dim * np.sign(rounded * q) * (query.shape[1] + 3) * np.log1p(u.unit))
    moved = 0.25 * products.sum(axis=2)
    moved = moved + away * 2.9 * u.unit * (top - logits)
    weights = np.exp(moved - top) * (1 + away * EXPONENTIAL * 0.99)
    sink_weight = sink_weight * (1 + np.where(right > 0, -sign, sign) * part * EXPONENTIAL * 0.99)
    toward = np.where(value > 0, sign, -sign) * part
    stored = weights * (1 + toward * p_format.unit)
    if p_format.tiny:  # below half the smallest subnormal a number is lost, above it is off by that
        largest = np.maximum(weights.max(axis=1, keepdims=True), sink_weight)
        lost = np.minimum(weights / largest, p_format.unit * weights / largest + p_format.tiny) * largest
        stored = weights + toward * lost
    v = value * (1 + np.sign(value) * toward * tiles.unit) + sign * part * tiles.tiny
    count = 2 * keys + 8
    above = (stored * v * np.exp(toward * count * np.log1p(u.unit) * 0.99)).sum(axis=1)
    total = weights.sum(axis=1) + sink_weight[:, 0]
    below = total * np.exp(np.where(above > 0, -signs, signs) * part * count * np.log1p(u.unit) * 0.99)
    output = above / below
    output = output + signs * part * (kernel.output.unit * np.abs(output) + kernel.output.tiny * 0.99)
    return output, np.log(total * np.exp(signs * part * (keys + 8) * np.log1p(u.unit) * 0.99)) + top[:, 0]
