"""Hypothesis strategies for K and V: shapes, dtypes and values chosen to hurt."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

FLOAT32 = np.dtype(np.float32)
DTYPES = (FLOAT32, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
DTYPE_IDS = [dtype.name for dtype in DTYPES]

_FLOAT32 = np.finfo(np.float32)
#: divided by these, an amax becomes a scale: 448, 127, 2688 and nvfp4's 6
_LARGEST = (448.0, 127.0, 2688.0, 6.0, 6.0 * 2.0**-10)

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)


def shapes(max_tokens=3, max_heads=2, head_dims=(16, 32)):
    """(tokens, heads, head_dim)."""
    return st.tuples(st.integers(1, max_tokens), st.integers(1, max_heads), st.sampled_from(head_dims))


@st.composite
def _near(draw, base):
    """A float32 and its neighbours, 1 ulp apart, of either sign."""
    value = np.float32(draw(base))
    steps = draw(st.integers(-1, 1))
    with np.errstate(over="ignore"):
        value = np.nextafter(value, np.float32(np.inf * steps)) if steps else value
    return float(value) * draw(st.sampled_from((1, -1)))


_powers = st.integers(-149, 127).map(lambda exponent: 2.0**exponent)
_halves = st.integers(-9, 260).map(lambda n: n / 2)  # midpoints of int8 and e2m1fn where the scale is a power of two
_sixteenths = st.integers(1, 511).map(lambda n: n / 16)  # midpoints of e4m3fn likewise
_underflowing = st.tuples(st.sampled_from(_LARGEST), st.integers(-151, -145)).map(lambda pair: pair[0] * 2.0 ** pair[1])
_huge = st.floats(2.0**120, float(_FLOAT32.max), width=32)
_ordinary = st.floats(-16, 16, width=32)
_any_bits = st.integers(0, 2**32 - 1).map(lambda bits: float(np.array(bits, np.uint32).view(np.float32)))

#: finite numbers and zeros of both signs
finite = st.one_of(
    st.sampled_from((0.0, -0.0, 1.0, -1.0, 448.0, 464.0, 127.0, 6.0, 5.0)),
    _ordinary,
    _near(_powers),
    _near(_halves),
    _near(_sixteenths),
    _near(_underflowing),
    _huge,
).map(lambda value: float(np.float32(value)))

#: the same with Inf, NaN, and all other patterns
anything = st.one_of(finite, st.sampled_from((np.inf, -np.inf, np.nan)), _any_bits)


def cast(values, dtype):
    """Numbers in another dtype, without NumPy's warnings: overflow is Inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, np.float32).astype(dtype)


@st.composite
def tensors(draw, shape=None, dtype=None, elements=anything):
    """K or V: rows of one kind each (all alike in size, a few chosen values, zeros), some of them with an outlier."""
    tokens, heads, dims = draw(shapes() if shape is None else shape)
    target = draw(dtypes) if dtype is None else dtype
    rng = np.random.default_rng(draw(seeds))
    rows = np.empty((tokens, heads, dims), np.float32)
    for place in np.ndindex(tokens, heads):
        kind = draw(st.sampled_from(("normal", "chosen", "chosen", "few", "zeros", "tiny", "multiples")))
        rows[place] = _row(draw, kind, dims, rng, elements)
    return cast(rows, target)


def _row(draw, kind, dims, rng, elements):
    if kind == "zeros":
        return rng.choice(np.array([0.0, -0.0], np.float32), dims)
    if kind == "tiny":  # around the smallest subnormal scales
        return (rng.integers(-3000, 3000, dims) * 2.0**-149).astype(np.float32)
    if kind == "chosen":
        return np.array(draw(st.lists(elements, min_size=dims, max_size=dims)), np.float32)
    if kind == "multiples":  # of half a step of a scale that is exact: ties everywhere
        scale = 2.0 ** draw(st.integers(-30, 30))
        largest = draw(st.sampled_from((448.0, 127.0, 6.0)))
        steps = rng.integers(-2 * int(largest), 2 * int(largest), dims) / 2
        steps[rng.integers(dims)] = largest
        return (steps * scale).astype(np.float32)
    row = (rng.standard_normal(dims) * 2.0 ** draw(st.integers(-20, 20))).astype(np.float32)
    if kind == "few":
        for value in draw(st.lists(elements, max_size=3)):
            row[rng.integers(dims)] = value
    return row


@st.composite
def ordinary_tensors(draw, shape=None, dtype=None):
    """Finite K or V without under- or overflow in sight, with a sink token or channel as real caches have them.

    The first token may be 100 times larger (K) or 4 times smaller (V) than the rest, one channel 30 times larger.
    """
    tokens, heads, dims = draw(shapes() if shape is None else shape)
    rng = np.random.default_rng(draw(seeds))
    x = rng.standard_normal((tokens, heads, dims)).astype(np.float32)
    x[0] *= draw(st.sampled_from((1.0, 100.0, 0.25)))
    x[..., rng.integers(dims)] *= draw(st.sampled_from((1.0, 30.0)))
    return cast(x, draw(dtypes) if dtype is None else dtype)


@st.composite
def with_outlier_token(draw, x):
    """A copy of x in which one token is another one: huge, tiny, all zeros or not finite. Gives (token, copy)."""
    token = draw(st.integers(0, len(x) - 1))
    changed = x.copy()
    rng = np.random.default_rng(draw(seeds))
    noise = rng.standard_normal(x.shape[1:]) * draw(st.sampled_from((0.0, 1e-30, 1e-3, 1e3, 1e30)))
    changed[token] = cast(noise, x.dtype)
    if draw(st.booleans()):
        changed[token, 0, 0] = draw(st.sampled_from((np.inf, -np.inf, np.nan)))
    return token, changed


#: given per-tensor scales: powers of two, ordinary ones, subnormal ones, and those whose 6 * g is Inf
given_scales = st.one_of(
    st.integers(-149, 127).map(lambda exponent: 2.0**exponent),
    st.floats(2.0**-12, 16, width=32),
    st.integers(1, 3000).map(lambda steps: steps * 2.0**-149),
    st.floats(2.0**125, float(_FLOAT32.max), width=32),
    st.sampled_from(
        (5.671372782015641e37, float(_FLOAT32.max), float(_FLOAT32.tiny), float(_FLOAT32.smallest_subnormal))
    ),
).map(lambda value: float(np.float32(value)))
