"""Cases for the certificates: how close each one comes to its bound. More than 1 is a violation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from kvformat.attention import certificates as certify
from kvformat.attention.definition import CAUSAL, Mask, attend
from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.modes import MODES
from kvformat.recipes import plain
from kvformat.recipes.catalogue import names, recipe

#: what float64 adds to an inequality in real arithmetic
FLOAT64 = 1e-11


def quantize(x, name, scale=None):
    """By the NumPy reader: a kernel for each recipe would take most of the time."""
    with np.errstate(all="ignore"):
        return plain.quantize(x, recipe(name), scale=scale)


def certified_recipes():
    """The recipes of the catalogue that have a certificate: all that none is refused for by name."""
    found = []
    for name in names():
        try:
            certify.element_bound(quantize(np.ones((1, 1, 128), np.float32), name))
        except InputError:
            continue
        found.append(name)
    return found


GOLDEN = [f"golden/{mode}" for mode in MODES if mode != "none"]


@dataclass(frozen=True)
class Case:
    """Keys and values with outliers, and a query: everything from a seed."""

    recipe: str
    seed: int
    tokens: int
    group: int
    exponent: int
    channel: float
    token: float
    #: how far inputs stand from ties between codes, in relative float32 steps; None: anywhere
    ties: int | None
    window: int | None
    sink: bool
    #: the scale given to recipes that take one, over what would just hold 1.0; None: computed
    given: float | None = None


@st.composite
def cases(draw, recipes):
    return Case(
        recipe=draw(st.sampled_from(recipes)),
        seed=draw(st.integers(0, 2**32 - 1)),
        tokens=draw(st.integers(1, 12)),
        group=draw(st.integers(1, 3)),
        exponent=draw(st.integers(-12, 12)),
        channel=draw(st.sampled_from([0.0, 0.0, 3.0, 12.0, 100.0, 1000.0])),
        token=draw(st.sampled_from([0.0, 0.0, 10.0, 1000.0])),
        ties=draw(st.sampled_from([None, 0, 1, -1, 40])),
        window=draw(st.sampled_from([None, None, 1, 3])),
        sink=draw(st.booleans()),
        given=draw(st.sampled_from([None, None, 0.01, 1.0, 3.0, 1000.0])),
    )


#: cases that the fuzzing tool makes of each example that Hypothesis draws
VARIANTS = 10


def case_variants(case):
    """Other numbers of the same kind."""
    return [replace(case, seed=case.seed + i) for i in range(VARIANTS)]


def error_variants(logits, delta, *rest):
    """The same errors smaller and larger."""
    return [(logits, delta * factor, *rest) for factor in np.geomspace(0.03, 3, VARIANTS)]


def tensors(case):
    """query, key, value float32 (tokens, heads, 32, or as many as share a scale) and the sink logits."""
    rng = np.random.default_rng(case.seed)
    inner = recipe(case.recipe).inner
    dims, heads = max(32, inner.granularity.dims if inner else 0), 2
    size = 2.0**case.exponent
    key, value = (rng.normal(0, 1, (case.tokens, heads, dims)) * size for _ in range(2))
    key[:, :, rng.integers(dims)] += case.channel * size
    value[rng.integers(case.tokens)] *= 1 + case.token
    if case.ties is not None:
        # quarters of a power of two with a few bits stand on ties of e2m1, and of e4m3 with power-of-two scales
        grid = size / 16
        key = np.round(key / grid) * grid * (1 + case.ties * 2.0**-23)
    query = rng.normal(0, 1 / size, (rng.integers(1, case.tokens + 1), heads * case.group, dims))
    sinks = rng.normal(0, 2, heads * case.group) if case.sink else None
    return *(each.astype(np.float32) for each in (query, key, value)), sinks


def given_scale(case):
    """The scale of a case whose recipe takes one: what would just hold the case's size, times its factor."""
    how = recipe(case.recipe)
    if case.given is None or not any(level.may_be_given for level in how.levels):
        return None
    levels = [each.format.element.max for each in how.levels if each.format.element]
    return case.given * 2.0**case.exponent / np.prod([element(how.element).max, *levels])


def ratios(case):
    """By certificate: the largest value over its bound."""
    query, key, value, sinks = tensors(case)
    given = given_scale(case)
    stored_key, stored_value = (quantize(x, case.recipe, scale=given) for x in (key, value))
    k, v = (x.dequantize(np.float64) for x in (stored_key, stored_value))
    h_key, h_value = (certify.element_bound(x, scale_given=given is not None) for x in (stored_key, stored_value))
    mask = Mask(window=case.window) if case.window else CAUSAL
    scale = 1 / np.sqrt(query.shape[2])
    exact = attend(query, key, value, mask=mask, sinks=sinks)
    other = attend(query, k, v, mask=mask, sinks=sinks)
    seen = np.isfinite(exact.logits)
    delta = np.where(seen, other.logits - np.where(seen, exact.logits, 0), 0)
    logit = certify.logit_bound(query, h_key, scale)
    omega = certify.spread_bound(logit, seen, sink=case.sink)
    tv = (np.abs(other.probabilities - exact.probabilities).sum(axis=2) + np.abs(other.sink - exact.sink)) / 2
    kl = other.lse - exact.lse - (exact.probabilities * delta).sum(axis=2)
    low, high = certify.lse_bounds(np.where(seen, delta, 0), seen)
    if case.sink:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    ranges = certify.value_ranges(v, h_value, seen[0], case.group, sink=case.sink)
    output = certify.output_bound(other.probabilities, h_value, omega, ranges)
    size = np.abs(exact.logits[seen]).max() + 1
    return {
        "element": max(_ratio(np.abs(a - b), h) for a, b, h in ((k, key, h_key), (v, value, h_value))),
        "logit": _ratio(np.abs(delta), logit, size),
        "total variation from bytes": _ratio(tv, certify.tv_bound(omega), size),
        "KL from bytes": _ratio(kl, certify.kl_bound(omega), size),
        # how far the change lies from the middle of its two bounds, over half their distance
        "log-sum-exp": _ratio(np.abs(other.lse - exact.lse - (low + high) / 2), (high - low) / 2, size),
        "output": _ratio(np.abs(other.output - exact.output), output, size * (np.abs(value).max() + 1)),
    }


def _ratio(found, bound, size=1.0):
    """The largest found / bound; what float64 rounding can have added to numbers of that size is taken off."""
    rounding = FLOAT64 * size
    left = np.maximum(found - rounding, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(left > 0, left / bound, 0)
    assert not np.isnan(quotient).any()
    return float(np.max(quotient))


@st.composite
def perturbations(draw):
    """Logits and errors, in groups as well, which is where the bounds are reached: (logits, delta), float64 (keys,)."""
    count = draw(st.integers(2, 8))
    numbers = st.floats(-20, 20, allow_subnormal=False)
    if draw(st.booleans()):
        omega = draw(st.floats(1e-3, 20))
        other = -omega / 2 + draw(st.floats(-0.5, 0.5))
        first = draw(st.integers(1, count - 1))
        group = np.arange(count) < first
        logits = np.where(group, other - np.log(first), -np.log(count - first))
        return logits, np.where(group, omega, 0.0)
    arrays = st.lists(numbers, min_size=count, max_size=count).map(np.array)
    return draw(arrays), draw(arrays)


def softmax_ratios(logits, delta):
    """TV and KL of two softmaxes over their bounds, by the definition."""
    p, other = (np.exp(x - x.max()) / np.exp(x - x.max()).sum() for x in (logits, logits + delta))
    omega = delta.max() - delta.min()
    with np.errstate(divide="ignore"):
        forward = (p * (np.log(p) - np.log(other))).sum()
        backward = (other * (np.log(other) - np.log(p))).sum()
    return {
        "total variation": _ratio(np.abs(p - other).sum() / 2, certify.tv_bound(omega)),
        "KL": max(_ratio(forward, certify.kl_bound(omega), 40), _ratio(backward, certify.kl_bound(omega), 40)),
    }


@st.composite
def evictions(draw):
    """Logits, errors and values, and which of the keys are dropped; at least one stays: float64 (keys,), (keys, 3)."""
    count = draw(st.integers(2, 10))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from([0.1, 1.0, 5.0]))
    evicted = rng.permutation(count) < draw(st.integers(1, count - 1))
    return rng.normal(0, spread, count), rng.normal(0, spread, count), rng.normal(0, 1, (count, 3)), evicted


def eviction_ratios(logits, delta, values, evicted):
    """The composed bound, and the three equalities: as 1 where they hold to float64's rounding, 2 where not."""

    def softmax(x):
        weights = np.exp(x - x.max())
        return weights / weights.sum()

    p = softmax(logits)
    kept, stored = softmax(np.where(evicted, -np.inf, logits)), softmax(np.where(evicted, -np.inf, logits + delta))
    mass, tv, kl = certify.eviction(p, evicted)
    found = np.abs(p - kept).sum() / 2
    inside = ~evicted
    kl_found = (kept[inside] * np.log(kept[inside] / p[inside])).sum()
    o, o_kept = p @ values, kept @ values
    evicted_mean = (p[evicted] @ values[evicted]) / mass
    error = delta[inside]
    both = certify.evicted_and_stored_bound(mass, error.max() - error.min())
    return {
        "TV = evicted mass": _equal(found, tv),
        # compared as exp(-KL) = 1 - mass: the logarithm of a small 1 - mass magnifies what float64 lost before
        "KL = -log(1 - mass)": _equal(np.exp(-kl_found), np.exp(-kl)),
        "output error = mass * (mean - kept)": _equal(o - o_kept, mass * (evicted_mean - o_kept)),
        "evicted and quantized": _ratio(np.abs(p - stored).sum() / 2, both),
    }


def _equal(a, b):
    # real numbers in float64: at most 10 terms of size 5 and less, each off by a few 2^-53, sum to within 1e-14
    return 1.0 if np.allclose(a, b, rtol=1e-9, atol=1e-13) else 2.0
