"""Attention and its errors, against a loop over the definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.attention.definition import Mask, attend, compare
from kvformat.errors import InputError


def by_definition(query, key, value, scale, window, sinks, *, causal=True):
    """(outputs, probabilities, sink) by head and row, in Python floats."""
    group = query.shape[1] // key.shape[1]
    out = np.zeros((query.shape[1], len(query), value.shape[2]))
    p = np.zeros((query.shape[1], len(query), len(key)))
    sink = np.zeros((query.shape[1], len(query)))
    for head in range(query.shape[1]):
        for row in range(len(query)):
            position = len(key) - len(query) + row
            keys = [
                j
                for j in range(len(key))
                if (not causal or j <= position) and (window is None or j > position - window)
            ]
            scores = {j: math.fsum(query[row, head] * key[j, head // group]) * scale for j in keys}
            weights = {j: math.exp(s) for j, s in scores.items()}
            extra = 0.0 if sinks is None else math.exp(sinks[head])
            total = math.fsum([*weights.values(), extra])
            for j, weight in weights.items():
                p[head, row, j] = weight / total
                out[head, row] += weight / total * value[j, head // group]
            sink[head, row] = extra / total
    return out, p, sink


@given(
    seed=st.integers(0, 1000),
    keys=st.integers(1, 7),
    group=st.integers(1, 3),
    window=st.sampled_from([None, 1, 3]),
    sink=st.booleans(),
    scale=st.sampled_from([None, 0.3]),
    causal=st.booleans(),
)
def test_attention_is_its_definition(seed, keys, group, window, sink, scale, causal):
    rng = np.random.default_rng(seed)
    queries = int(rng.integers(1, keys + 1))
    query, key, value = (rng.normal(0, 1, (n, h, 4)) for n, h in ((queries, 2 * group), (keys, 2), (keys, 2)))
    sinks = rng.normal(0, 1, 2 * group) if sink else None
    found = attend(query, key, value, scale=scale, mask=Mask(causal=causal, window=window), sinks=sinks)
    out, p, extra = by_definition(query, key, value, scale or 0.5, window, sinks, causal=causal)
    np.testing.assert_allclose(found.output, out, atol=1e-13)
    np.testing.assert_allclose(found.probabilities, p, atol=1e-13)
    np.testing.assert_allclose(found.sink, extra, atol=1e-13)
    np.testing.assert_allclose(found.probabilities.sum(axis=2) + found.sink, 1, atol=1e-13)


@given(seed=st.integers(0, 1000), sink=st.booleans())
def test_row_errors_are_their_definitions(seed, sink):
    rng = np.random.default_rng(seed)
    query, key, value = (rng.normal(0, 1, (5, h, 4)) for h in (4, 2, 2))
    other_key, other_value = (x + rng.normal(0, 0.1, x.shape) for x in (key, value))
    sinks = rng.normal(0, 1, 4) if sink else None
    a, b = (attend(query, *kv, sinks=sinks) for kv in ((key, value), (other_key, other_value)))
    errors = compare(a, b)
    for head in range(4):
        for row in range(5):
            p = [*a.probabilities[head, row, : row + 1], *([a.sink[head, row]] if sink else [])]
            q = [*b.probabilities[head, row, : row + 1], *([b.sink[head, row]] if sink else [])]
            kl = math.fsum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
            tv = math.fsum(abs(x - y) for x, y in zip(p, q, strict=True)) / 2
            assert errors.kl[head, row] == pytest.approx(kl, abs=1e-13)
            assert errors.tv[head, row] == pytest.approx(tv, abs=1e-13)
            seen = slice(row + 1)
            delta = [*(b.logits[head, row, seen] - a.logits[head, row, seen]), *([0.0] if sink else [])]
            assert errors.spread[head, row] == pytest.approx(max(delta) - min(delta), abs=1e-12)
            mean = math.fsum(x * d for x, d in zip(p, delta, strict=True))
            variance = math.fsum(x * (d - mean) ** 2 for x, d in zip(p, delta, strict=True))
            assert errors.logit[head, row] == pytest.approx(math.sqrt(variance), abs=1e-12)
    assert errors.top1.dtype == bool


def test_nothing_stored_is_no_error():
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(0, 1, (6, 2, 8)) for _ in range(3))
    errors = compare(attend(query, key, value), attend(query, key, value)).means()
    assert errors == {"logit": 0, "spread": 0, "tv": 0, "kl": 0, "top1": 1, "output": 0}


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, 3, 4), (3, 2, 4), (3, 2, 4)), "multiple of the 2 kv heads"),
        (((2, 2, 5), (3, 2, 4), (3, 2, 4)), "same head_dim"),
        (((2, 2, 4), (3, 2, 4), (4, 2, 4)), "tokens and heads of key"),
        (((4, 2, 4), (3, 2, 4), (3, 2, 4)), "at least as many keys"),
        (((2, 4), (3, 2, 4), (3, 2, 4)), "query must have shape"),
    ],
)
def test_shapes_that_do_not_fit_are_one_line(shapes, message):
    with pytest.raises(InputError, match=message):
        attend(*(np.ones(shape) for shape in shapes))


def test_a_query_without_keys_and_a_window_without_tokens_are_refused():
    x = np.ones((2, 1, 4))
    with pytest.raises(InputError, match="sees no key"):
        attend(x, x, x, visible=np.zeros((1, 2, 2), bool))
    with pytest.raises(InputError, match="window must be at least 1"):
        Mask(window=0)
