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
    found = {"judged output": 0.0, "judged log-sum-exp": 0.0}
    for head in range(2):
        sink = None if sinks is None else sinks[head]
        for dim in range(2):
            for sign in (1, -1):
                numbers = (query[0, head], key[seen, 0], value[seen, 0, dim], sink)
                output, lse = worst(*numbers, kernel, sign, case.part, case.tokens)
                error = abs(output - right.exact.output[head, 0, dim])
                found["judged output"] = max(found["judged output"], _over(error, right.bound[head, 0, dim]))
                error = abs(lse - right.exact.lse[head, 0])
                found["judged log-sum-exp"] = max(found["judged log-sum-exp"], _over(error, right.lse_bound[head, 0]))
    return found


def _over(error, bound):
    return max(0.0, error - FLOAT64 * min(1.0, bound * 1e6)) / bound


def worst(query, key, value, sink, kernel, sign, part, keys):
    """One output channel and the log-sum-exp, each rounding at `part` of its end, signed to move the output by sign."""
    u, tiles, p_format = kernel.accumulator, kernel.tiles, kernel.probabilities
    logits = 0.25 * key @ query
    top = max(logits.max(), -np.inf if sink is None else sink)
    weights = np.exp(logits - top)
    sink_weight = 0.0 if sink is None else np.exp(sink - top)
    right = (weights * value).sum() / (weights.sum() + sink_weight)
    away = np.where(value >= right, sign, -sign)[:, None] * part
    # a kernel's own numbers: K rounded, products and their sum, the difference, the exponential
    rounded = key + away * np.sign(query) * (tiles.unit * np.abs(key) + tiles.tiny)
    products = rounded * query * np.exp(away * np.sign(rounded * query) * (len(query) + 3) * np.log1p(u.unit))
    moved = 0.25 * products.sum(axis=1)
    moved = moved + away[:, 0] * 2.9 * u.unit * (top - logits)
    weights = np.exp(moved - top) * (1 + away[:, 0] * EXPONENTIAL * 0.99)
    if sink is not None:
        from_sink = (-sign if right > 0 else sign) * part
        sink_weight *= 1 + from_sink * EXPONENTIAL * 0.99
    toward = np.where(value > 0, sign, -sign) * part
    stored = weights * (1 + toward * p_format.unit)
    if kernel.probabilities.tiny:  # below half the smallest subnormal a number is lost, above it is off by that
        largest = max(weights.max(), sink_weight)
        lost = np.minimum(weights / largest, p_format.unit * weights / largest + p_format.tiny) * largest
        stored = weights + toward * lost
    v = value * (1 + np.sign(value) * toward * tiles.unit) + sign * part * tiles.tiny
    count = 2 * keys + 8
    factor = np.exp(toward * count * np.log1p(u.unit) * 0.99)
    above = (stored * v * factor).sum()
    total = weights.sum() + sink_weight
    below = total * np.exp((-sign if above > 0 else sign) * part * count * np.log1p(u.unit) * 0.99)
    output = above / below
    output = output + sign * part * (kernel.output.unit * abs(output) + kernel.output.tiny * 0.99)
    return output, np.log(total * np.exp(sign * part * (keys + 8) * np.log1p(u.unit) * 0.99)) + top
